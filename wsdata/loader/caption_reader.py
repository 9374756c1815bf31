"""Captions of samples that are served, each by a read of its own; the variant is chosen by step."""

import threading

import xxhash

from wsdata.errors import IntegrityError
from wsdata.loader.fetch import Fetcher
from wsdata.shard.packs import parse_record
from wsdata.shard.placement import Placement

_MIN_SCRATCH_BYTES = 4096


class CaptionReader:
    """Reads captions of single samples. Safe to use from threads; each has scratch memory."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._local = threading.local()

    def read(self, placement: Placement) -> dict[str, str]:
        """Captions of a sample by variant, sorted; variants that it lacks are absent.

        Raises:
            IntegrityError: The bytes are wrong in the store itself, or of another sample; clip,
                pack and offset are named.
            ObjectMissing: The pack is not in the store.
        """
        length, recorded = placement.caption_length, placement.caption_xxh3
        if not length:
            return {}
        line = self._scratch(length)
        self._fetcher.read_into(
            placement.caption_pack_key,
            placement.caption_offset,
            [line],
            is_valid=lambda: xxhash.xxh3_64_hexdigest(line) == recorded,
            name=lambda: placement.caption_words,
        )
        sample_id, captions = parse_record(str(line, "utf-8"))
        if sample_id != placement.sample_id:
            raise IntegrityError(
                f"{placement.caption_words}: holds captions of sample {sample_id}: the index and "
                "the pack are of different writers; run shard/caption_packs of its group again, "
                "and cut the next dataset version"
            )
        return captions

    def _scratch(self, num_bytes: int) -> memoryview:
        kept: memoryview | None = getattr(self._local, "scratch", None)
        if kept is None or len(kept) < num_bytes:
            kept = memoryview(bytearray(max(2 * num_bytes, _MIN_SCRATCH_BYTES)))
            self._local.scratch = kept
        return kept[:num_bytes]
