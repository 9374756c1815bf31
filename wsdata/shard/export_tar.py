"""WebDataset files of an export: tars in which the members of a sample share a name.

| member | what |
|---|---|
| json | ids, bucket, stream, shape, dtype, tokenizer, captions, channels; the place in training |
| latents.npy | one byte a value, (t, c, h, w), as stored |
| scale.npy | float32, of each channel |
| txt | the caption that training would be given; where there is none, no such member |
| audio.npy, actions.npy | int16 mono at 16 kHz; float32 (num_frames, dims): where there are any |

Bytes depend on the samples alone: members carry no time and no owner.
"""

import io
import json
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wsdata.digest import canonical_json
from wsdata.shard.export_items import Exported, sample_key
from wsdata.shard.format import AUDIO_RATE_HZ, Sample, decode_sample


def write_tar(path: Path, items: Iterable[Exported]) -> None:
    """Write samples into one tar, one after the other.

    Raises:
        IntegrityError: Bytes that are no sample.
    """
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for item in items:
            key = sample_key(item)
            for suffix, data in _members(item):
                info = tarfile.TarInfo(f"{key}.{suffix}")
                info.size, info.mode = len(data), 0o444
                tar.addfile(info, io.BytesIO(data))


def _members(item: Exported) -> Iterator[tuple[str, bytes]]:
    sample = decode_sample(item.data)
    yield "json", canonical_json(_facts(item, sample)).encode()
    yield "latents.npy", _npy(sample.codes_tchw)
    yield "scale.npy", _npy(sample.scale_c)
    if item.caption:
        yield "txt", item.caption.encode()
    if sample.audio_n is not None:
        yield "audio.npy", _npy(sample.audio_n)
    if sample.actions_fd is not None:
        yield "actions.npy", _npy(sample.actions_fd)


def _facts(item: Exported, sample: Sample) -> dict[str, Any]:
    served = {} if item.served is None else item.served._asdict()
    more: dict[str, Any] = {} if sample.audio_n is None else {"audio_rate_hz": AUDIO_RATE_HZ}
    if item.channels_json:
        more["action_channels"] = json.loads(item.channels_json)
    return {
        "sample_id": sample.sample_id,
        "clip_id": sample.clip_id,
        "stream": item.placement.stream,
        "bucket": item.placement.bucket,
        "dtype": sample.dtype,
        "tokenizer": sample.tokenizer_version,
        "shape": list(sample.codes_tchw.shape),
        "captions": item.captions,
        **more,
        **served,
    }


def _npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def read_tar(path: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield each sample of a tar: its key, and its members by suffix."""
    key, members = "", dict[str, bytes]()
    with tarfile.open(path, "r:") as tar:
        for info in tar:
            name, _, suffix = info.name.partition(".")
            if name != key and members:
                yield key, members
                members = {}
            key = name
            file = tar.extractfile(info)
            members[suffix] = file.read() if file else b""
    if members:
        yield key, members


def decode_members(members: dict[str, bytes]) -> dict[str, Any]:
    """Read a sample's members: what ``json`` says, and each array under its name."""
    body: dict[str, Any] = json.loads(members["json"])
    for name in ("latents", "scale", "audio", "actions"):
        if (data := members.get(f"{name}.npy")) is not None:
            body[name] = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    return body
