"""Reading an export back: every file against its digest, every sample out of its file.

Needs what was exported alone, and no deployment. What is found wrong is told, all of it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wsdata.errors import IntegrityError
from wsdata.shard.export_bucket import NOTES
from wsdata.shard.export_folder import is_left_behind, sha256_of
from wsdata.shard.export_mds import INDEX, base_sample, read_head
from wsdata.shard.export_place import ExportPlace, open_place
from wsdata.shard.export_tar import decode_members, read_tar
from wsdata.shard.export_target import MANIFEST, FileRecord, read_export
from wsdata.shard.format import Sample, decode_sample


class ExportCheck(NamedTuple):
    """What an export holds, and what of it is wrong.

    Attributes:
        faults: One sentence each; empty where all is well.
        strays: Those of the faults that no export repairs: files that none made.
        sample_ids: Of every sample, in the order of the files.
    """

    format: str
    version: str
    num_files: int
    num_samples: int
    num_bytes: int
    faults: list[str]
    strays: list[str]
    sample_ids: list[str]


def check_export(where: str | Path) -> ExportCheck:
    """Check an export where it lies.

    Args:
        where: As `export_place.open_place` takes it.

    Raises:
        WsdataError: There is no finished export.
    """
    place = open_place(where)
    body = read_export(place)
    faults: list[str] = []
    sample_ids: list[str] = []
    for record in body["files"]:
        try:
            sample_ids += _check_file(place, record)
        except (IntegrityError, OSError, ValueError, KeyError) as error:
            faults.append(f"{record['path']}: {error}")
    listed = {MANIFEST, *(record["path"] for record in body["files"])}
    others = sorted(set(place.paths()) - listed)
    left = [path for path in others if is_left_behind(path) or path.startswith(NOTES)]
    faults += [f"{path}: was left behind by an export that was killed" for path in left]
    strays = [
        f"{path}: is none of the export's files, and no export removes it: remove it by hand"
        for path in others
        if path not in left
    ]
    faults += strays
    if not faults and len(sample_ids) != body["num_samples"]:
        faults.append(f"{len(sample_ids)} samples were read, {body['num_samples']} are listed")
    return ExportCheck(
        format=body["spec"]["format"],
        version=body["spec"]["version"],
        num_files=len(body["files"]),
        num_samples=len(sample_ids),
        num_bytes=sum(record["bytes"] for record in body["files"]),
        faults=faults,
        strays=strays,
        sample_ids=sample_ids,
    )


def _check_file(place: ExportPlace, record: FileRecord) -> list[str]:
    """Check one file, and return the ids of its samples.

    Raises:
        IntegrityError: It is not what was written.
    """
    with place.local(record["path"]) as path:
        if (found := sha256_of(path)) != record["sha256"]:
            raise IntegrityError(f"has digest {found[:12]}, written was {record['sha256'][:12]}")
        if path.suffix == ".mds":
            ids = [sample.sample_id for sample in read_mds(path)]
        elif path.suffix == ".tar":
            ids = [_check_members(members) for _, members in read_tar(path)]
        elif path.name == INDEX:
            return _check_index(place, record["path"], json.loads(path.read_bytes()))
        else:
            return []
    if len(ids) != record["num_samples"]:
        raise IntegrityError(f"holds {len(ids)} samples, listed are {record['num_samples']}")
    return ids


def read_mds(path: Path) -> Iterator[Sample]:
    """Yield the samples of an MDS file of ours, in its order.

    Raises:
        IntegrityError: The file is none.
    """
    with path.open("rb") as file:
        head = read_head(file, path.stat().st_size)
        file.seek(head.offsets[0])
        for start, end in zip(head.offsets, head.offsets[1:], strict=False):
            yield decode_sample(base_sample(file.read(end - start), head.config))


def _check_members(members: dict[str, bytes]) -> str:
    body = decode_members(members)
    shape = tuple(body["shape"])
    if body["latents"].dtype != np.uint8 or body["latents"].shape != shape:
        raise IntegrityError(
            f"sample {body['sample_id']} has latents of {body['latents'].dtype} "
            f"{body['latents'].shape}, said is {shape}"
        )
    return body["sample_id"]


def _check_index(place: ExportPlace, path: str, body: dict[str, Any]) -> list[str]:
    for entry in body["shards"]:
        name, size = entry["raw_data"]["basename"], entry["raw_data"]["bytes"]
        if place.size(f"{path.rpartition('/')[0]}/{name}") != size:
            raise IntegrityError(f"names {name} of {size} bytes, which is not there")
    return []
