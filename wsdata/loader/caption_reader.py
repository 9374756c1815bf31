"""Captions of samples that are served, each by a read of its own; the variant is chosen by step."""

import threading
from collections.abc import Sequence

import xxhash

from wsdata.errors import IntegrityError
from wsdata.loader.fetch import Fetcher
from wsdata.loader.straight import Range, read_ranges
from wsdata.shard.packs import CaptionRecord, parse_record
from wsdata.shard.placement import Placement

_MIN_SCRATCH_BYTES = 4096
_NO_RECORD = CaptionRecord("", {})


class CaptionReader:
    """Reads captions of single samples. Safe to use from threads; each has scratch memory."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._local = threading.local()

    def read_straight(self, placements: Sequence[Placement]) -> list[dict[str, str]]:
        """As `read` of several, at little cost, as long as nothing is to be fetched or is wrong.

        Returns:
            Captions of the first ones; `read` is to read the next.
        """
        wanted = [each for each in placements if each.caption_length]
        if not wanted:
            return [{} for _ in placements]
        ranges = [(e.caption_pack_key, e.caption_offset, e.caption_length) for e in wanted]
        with self._fetcher.held(ranges) as places:
            found = read_ranges(
                [
                    Range(*place, each.caption_length, int(each.caption_xxh3, 16))
                    for place, each in zip(places, wanted, strict=False)
                ]
            )
        if found:
            seconds, num_bytes = [s for _, s in found], sum([len(data) for data, _ in found])
            self._fetcher.note_read(seconds, num_bytes)
        records = (parse_record(str(data, "utf-8")) for data, _ in found)
        captions: list[dict[str, str]] = []
        for each in placements:
            if not each.caption_length:
                captions.append({})
                continue
            sample_id, told = next(records, _NO_RECORD)
            if sample_id != each.sample_id:
                break
            captions.append(told)
        return captions

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
