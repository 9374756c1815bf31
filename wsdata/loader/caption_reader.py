"""Captions of samples that are served: packs are kept parsed, the variant is chosen by step."""

import threading
from collections import OrderedDict
from pathlib import PurePosixPath
from typing import NamedTuple

from wsdata.digest import sha256_bytes
from wsdata.errors import IntegrityError
from wsdata.shard.packs import read_captions
from wsdata.shard.placement import Placement
from wsdata.store import BlobStore

MAX_OPEN_PACKS = 64


class _Pack(NamedTuple):
    sample_ids: list[str]
    texts: dict[str, list[str | None]]  # by variant, in their order


class CaptionReader:
    """Reads captions of single samples. Safe to use from threads: a pack is read once."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._packs: OrderedDict[str, tuple[threading.Lock, list[_Pack]]] = OrderedDict()

    def read(self, placement: Placement) -> dict[str, str]:
        """Captions of a sample by variant, sorted; variants that it lacks are absent.

        Raises:
            IntegrityError: The pack is not what its name says, or of other samples.
            ObjectMissing: The pack is not in the store.
        """
        key, row = placement.caption_pack_key, placement.row
        if not key:
            return {}
        pack = self._pack(key)
        if row >= len(pack.sample_ids) or pack.sample_ids[row] != placement.sample_id:
            raise IntegrityError(
                f"caption pack {key}: row {row} is not of sample {placement.sample_id}: run "
                "shard/caption_packs of its group again"
            )
        texts = ((variant, column[row]) for variant, column in pack.texts.items())
        return {variant: text for variant, text in texts if text is not None}

    def _pack(self, key: str) -> _Pack:
        with self._lock:
            if key in self._packs:
                self._packs.move_to_end(key)
            else:
                self._packs[key] = (threading.Lock(), [])
                while len(self._packs) > MAX_OPEN_PACKS:
                    self._packs.popitem(last=False)
            lock, kept = self._packs[key]
        if kept:
            return kept[0]
        with lock:
            if not kept:
                kept.append(self._read(key))
            return kept[0]

    def _read(self, key: str) -> _Pack:
        data = self._store.get(key)
        if PurePosixPath(key).stem != (found := sha256_bytes(data)):
            raise IntegrityError(
                f"caption pack {key} has digest {found[:12]}, not the one in its name: delete it "
                "and run shard/caption_packs of its group again"
            )
        return _Pack(*read_captions(data))
