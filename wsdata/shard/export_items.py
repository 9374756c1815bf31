"""What an export is made of: samples with their bytes and words, and the names they get.

How files are written belongs to `export_mds` and `export_tar`, the place that they stand in to
`export_place`; which samples go out, to `lifecycle.export`.
"""

from typing import NamedTuple

from wsdata.errors import IntegrityError
from wsdata.shard.placement import Placement
from wsdata.shard.reader import sample_digest
from wsdata.store import BlobStore

DEFAULT_MAX_BYTES = 256 * 2**20
MAX_FILE_BYTES = 2**31  # offsets in MDS are uint32, and captions come on top


class ServedAs(NamedTuple):
    """Where in training a sample stands: of exports in the order of the plan.

    Attributes:
        epoch: How often its pool had been through before.
        variant: Of its captions, the one that this slot is served with; empty where it has none.
    """

    step: int
    slot: int
    epoch: int
    variant: str


class Item(NamedTuple):
    """One sample of an export, before its bytes are read."""

    placement: Placement
    served: ServedAs | None


class Exported(NamedTuple):
    """One sample of an export.

    Attributes:
        data: As it lies in its shard, checked against its digest.
        captions: By variant.
        channels_json: What the columns of its actions are; empty where it has none.
    """

    placement: Placement
    served: ServedAs | None
    data: bytes
    captions: dict[str, str]
    channels_json: str = ""

    @property
    def caption(self) -> str:
        """What training would be given in this place; else the variant that sorts first."""
        if self.served is not None:
            return self.captions.get(self.served.variant, "")
        return self.captions[min(self.captions)] if self.captions else ""


class FilePlan(NamedTuple):
    """One file of samples: its folder and name within the export, and what it holds."""

    folder: str
    name: str
    items: list[Item]

    @property
    def path(self) -> str:
        """Relative to the export."""
        return f"{self.folder}/{self.name}"


def bucket_folder(bucket: str) -> str:
    """Folder of a bucket within an export."""
    return bucket.replace("/", "_")


def sample_key(item: Exported) -> str:
    """Name of a sample where dots end a name: ids without them, after the place in training."""
    name = item.placement.sample_id.replace(".", "_")
    served = item.served
    return name if served is None else f"{served.step:09d}-{served.slot:06d}-{name}"


def read_verified(store: BlobStore, placement: Placement) -> bytes:
    """Read a sample's bytes.

    Raises:
        IntegrityError: They are not those that were written.
        StoreError: The store failed, or has lost the shard.
    """
    data = store.get_range(placement.shard_key, placement.offset, placement.length)
    if (found := sample_digest(data)) != placement.xxh3:
        raise IntegrityError(
            f"{placement.words}: its bytes have digest {found}, recorded is {placement.xxh3}: "
            "delete the shard, run `wsdata run`, and export again"
        )
    return data
