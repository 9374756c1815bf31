"""Copy a dataset version: `dataset sync` against `cp -r` and `sha256sum -c`, which checks as much.

Also a second sync, which finds all of it there, and how far the peak of memory rises above what
making one shard took.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from wsdata.digest import sha256_bytes
from wsdata.lifecycle.sync import sync_version
from wsdata.shard.publish import index_key, publish_dataset
from wsdata.shard.writer import shard_key
from wsdata.store import FolderStore

NUM_SHARDS = 16
SHARD_BYTES = 64 * 2**20
THREADS = 2


def main() -> None:
    """Write a version of random shards, copy it both ways, and print seconds and their ratio."""
    with tempfile.TemporaryDirectory(prefix="wsdata-benchmark-") as folder:
        root = Path(folder)
        source, target = FolderStore(root / "source"), FolderStore(root / "target")
        _publish(source)
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        spent_s = {}
        for name in ("sync", "again"):
            begun = time.monotonic()
            done = sync_version(source, target, "v1", num_threads=THREADS)
            spent_s[name] = time.monotonic() - begun
            assert done.is_published
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        listed = root / "sums"
        listed.write_text(
            "".join(
                f"{Path(key).stem}  {root / 'other' / key}\n"
                for key, _ in source.list("training/shards/")
            )
        )
        begun = time.monotonic()
        for command in (["cp", "-r", root / "source", root / "other"], ["sha256sum", "-c", listed]):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
        spent_s["cp_sha256sum"] = time.monotonic() - begun
    print(
        json.dumps(
            {
                "bytes": NUM_SHARDS * SHARD_BYTES,
                "threads": THREADS,
                **{f"{name}_s": round(seconds, 3) for name, seconds in spent_s.items()},
                "cp_over_sync": round(spent_s["cp_sha256sum"] / spent_s["sync"], 2),
                "extra_memory_mib": (peak_kib - before_kib) // 1024,
                "python": sys.version.split()[0],
            }
        )
    )


def _publish(store: FolderStore) -> None:
    random = np.random.default_rng(0)
    keys = []
    for _ in range(NUM_SHARDS):
        data = random.bytes(SHARD_BYTES)
        keys.append(shard_key(sha256_bytes(data)))
        store.put(keys[-1], data)
    index = pl.DataFrame(
        {"shard_key": keys, "caption_pack_key": [None] * NUM_SHARDS},
        schema_overrides={"caption_pack_key": pl.String},
    )
    path = store.root / "index.parquet"
    index.write_parquet(path)
    data, plan = path.read_bytes(), b"{}"
    path.unlink()
    body = {
        "index_key": index_key(sha256_bytes(data)),
        "index_sha256": sha256_bytes(data),
        "plan_key": f"training/plans/{sha256_bytes(plan)}.json",
        "plan_id": sha256_bytes(plan),
        "manifest_digest": "none",
    }
    store.put(body["index_key"], data)
    store.put(body["plan_key"], plan)
    publish_dataset(store, "v1", body)


if __name__ == "__main__":
    main()
