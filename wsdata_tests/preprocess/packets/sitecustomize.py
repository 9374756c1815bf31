"""Counts packets that enter a decoder, in every Python process that starts with this on its path.

libav's `avcodec_send_packet` is what every decoder of video and sound is fed by, whoever calls
it; each module's own entry for it is turned to a counter, in memory, before anything runs. Both
copies of libav are watched: PyAV's and OpenCV's. Counts lie in a file that all processes map.
"""

import ctypes
import mmap
import os
import struct

COUNTS = "WSDATA_TEST_PACKETS"  # names the file; without it nothing is done
NUM_SLOTS = 4096
FED_BY = b"avcodec_send_packet"

_PT_DYNAMIC = 2
_DT_NEEDED, _DT_PLTRELSZ, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_JMPREL = (
    1, 2, 5, 6, 7, 8, 23,
)  # fmt: skip
_SLOT_KINDS = (6, 7, 1025, 1026)  # GLOB_DAT and JUMP_SLOT of x86-64 and of AArch64
_HOOK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_KEPT = []  # callbacks that libraries point to


class _Header(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("offset", ctypes.c_uint64),
        ("vaddr", ctypes.c_uint64), ("paddr", ctypes.c_uint64), ("filesz", ctypes.c_uint64),
        ("memsz", ctypes.c_uint64), ("align", ctypes.c_uint64),
    ]  # fmt: skip


class _Object(ctypes.Structure):
    _fields_ = [
        ("addr", ctypes.c_uint64), ("name", ctypes.c_char_p),
        ("headers", ctypes.POINTER(_Header)), ("num_headers", ctypes.c_uint16),
    ]  # fmt: skip


def total(path) -> int:
    """All packets counted so far in a file of counts."""
    with open(path, "rb") as handle:  # noqa: PTH123
        return sum(struct.unpack(f"{NUM_SLOTS}Q", handle.read(8 * NUM_SLOTS)))


def new_counts(path) -> None:
    """Make an empty file of counts."""
    with open(path, "wb") as handle:  # noqa: PTH123
        handle.write(bytes(8 * NUM_SLOTS))


def _loaded() -> list[tuple[int, str, list[tuple[int, int]]]]:
    """Libraries in this process: base, path, entries of the dynamic section."""
    found = []

    def each(told, _size, _data):
        info = told.contents
        for index in range(info.num_headers):
            header = info.headers[index]
            if header.type == _PT_DYNAMIC:
                raw = ctypes.string_at(info.addr + header.vaddr, header.memsz)
                tags = [struct.unpack_from("qQ", raw, at) for at in range(0, len(raw) - 15, 16)]
                found.append((info.addr, (info.name or b"").decode(), tags))
        return 0

    callback = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.POINTER(_Object), ctypes.c_size_t, ctypes.c_void_p
    )(each)
    ctypes.CDLL(None).dl_iterate_phdr(callback, None)
    return found


def _slots(base: int, tags: list[tuple[int, int]]) -> tuple[list[int], list[str]]:
    """Addresses of a library's own entries for the function, and the libraries that it needs."""
    one = dict(tags)
    if _DT_STRTAB not in one or _DT_SYMTAB not in one:
        return [], []

    def at(tag: int) -> int:
        return one[tag] if one[tag] >= base else one[tag] + base

    strings, symbols = at(_DT_STRTAB), at(_DT_SYMTAB)
    needed = [ctypes.string_at(strings + value).decode() for tag, value in tags
              if tag == _DT_NEEDED]  # fmt: skip
    if not any(name.startswith("libavcodec") for name in needed):
        return [], needed
    slots = []
    for where, size in ((_DT_RELA, _DT_RELASZ), (_DT_JMPREL, _DT_PLTRELSZ)):
        raw = ctypes.string_at(at(where), one[size]) if where in one else b""
        for offset, info, _ in struct.iter_unpack("QQq", raw):
            if info & 0xFFFFFFFF not in _SLOT_KINDS:
                continue
            name_at = struct.unpack("I", ctypes.string_at(symbols + 24 * (info >> 32), 4))[0]
            if ctypes.string_at(strings + name_at) == FED_BY:
                slots.append(base + offset)
    return slots, needed


def watch(path: str) -> int:
    """Turn every loaded module's entry to a counter; return how many were."""
    with open(path, "r+b") as handle:  # noqa: PTH123
        counts = mmap.mmap(handle.fileno(), 8 * NUM_SLOTS)
    loaded = _loaded()
    by_name = {os.path.basename(name): name for _, name, _ in loaded}  # noqa: PTH119
    libc, page = ctypes.CDLL(None), mmap.PAGESIZE
    turned = 0
    for base, _, tags in loaded:
        slots, needed = _slots(base, tags)
        if not slots:
            continue
        codecs = next(name for name in needed if name.startswith("libavcodec"))
        real = ctypes.CDLL(by_name[codecs])[FED_BY.decode()]
        real.restype, real.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]

        def counted(context, packet, real=real):
            if packet:  # without one the decoder is told that it was the last
                at = 8 * (os.getpid() % NUM_SLOTS)
                counts[at : at + 8] = struct.pack(
                    "Q", 1 + struct.unpack("Q", counts[at : at + 8])[0]
                )
            return real(context, packet)

        hook = _HOOK(counted)
        _KEPT.append(hook)
        address = ctypes.cast(hook, ctypes.c_void_p).value or 0
        for slot in slots:
            start = slot // page * page
            if libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(page), 3) != 0:
                raise OSError("the entry cannot be written")
            ctypes.c_uint64.from_address(slot).value = address
            turned += 1
    return turned


if os.environ.get(COUNTS):
    import av  # noqa: F401
    import cv2  # noqa: F401

    if not watch(os.environ[COUNTS]):
        raise RuntimeError("no module feeds a decoder: what is there to count?")
