"""What stands beside the loader: Streaming, WebDataset, a bare read. Prints JSON.

Runs in the environment of `tools/interop.sh`, so nothing of wsdata is imported here. Each way
hands over batches of stacked latents, but for the plain ones, which get their samples as they
come: whatever they leave out is to their favour.
"""

import argparse
import itertools
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


def measure(batches: Any, wanted: int) -> dict:
    """Take batches of so many bytes of latents; the first ones are not counted."""
    iterator = iter(batches)
    for _ in range(3):
        next(iterator)
    cpu, begun, done = cpu_seconds(), time.monotonic(), 0
    while done < wanted:
        done += next(iterator)
    seconds = time.monotonic() - begun
    close = getattr(batches, "close", None)
    if close:
        close()
    del iterator, batches
    spent = cpu_seconds() - cpu
    return {"bytes": done, "seconds": seconds, "cpu_s": spent, "MB_per_s": done / seconds / 1e6}


def cpu_seconds() -> float:
    """CPU time of this process and all that came of it, ended or not."""
    spent, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        pid = int(path.parent.name)
        parents[pid], spent[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    mine, found = {os.getpid()}, {os.getpid()}
    while found:
        found = {pid for pid, parent in parents.items() if parent in found} - mine
        mine |= found
    return sum(spent.get(pid, 0) for pid in mine) / os.sysconf("SC_CLK_TCK")


def stack(samples: list[dict]) -> tuple[Any, Any]:
    """Latents of a batch as one tensor, as a trainer needs them."""
    import torch

    arrays = [
        np.frombuffer(each["latents"], np.uint8).reshape([int(side) for side in each["shape"]])
        for each in samples
    ]
    return torch.from_numpy(np.stack(arrays)), torch.from_numpy(
        np.stack([each["scale"] for each in samples])
    )


def _streaming(args: argparse.Namespace) -> Any:
    """The same shards, as often over as it takes, so that no epoch ends under the clock."""
    from streaming import StreamingDataset

    folder = args.root / "mds" / args.version
    shards = json.loads((folder / "index.json").read_text())["shards"]
    size = sum(each["raw_data"]["bytes"] for each in shards) / sum(
        each["samples"] for each in shards
    )
    return StreamingDataset(
        local=str(folder),
        batch_size=args.batch,
        shuffle=True,
        shuffle_seed=1,
        num_canonical_nodes=1,
        epoch_size=int(1.5 * args.bytes / size) + 20 * args.batch,
    )


def streaming_dataloader(args: argparse.Namespace) -> Iterator[int]:
    """Streaming through a torch DataLoader with two workers, which stack."""
    from torch.utils.data import DataLoader

    loader = DataLoader(
        _streaming(args), batch_size=args.batch, num_workers=2, collate_fn=stack, drop_last=True
    )
    for latents, _ in loader:
        yield latents.numel()


def streaming_plain(args: argparse.Namespace) -> Iterator[int]:
    """Streaming's own iteration, sample by sample, nothing stacked."""
    for sample in _streaming(args):
        yield len(sample["latents"])


def webdataset_batches(args: argparse.Namespace) -> Iterator[int]:
    """WebDataset over tars in the same process, shuffled as usual, stacked."""
    import webdataset as wds

    urls = [str(path) for path in sorted((args.root / "tars" / args.version).glob("*.tar"))]
    data = wds.WebDataset(urls, shardshuffle=len(urls), empty_check=False, seed=1).shuffle(100)
    data = data.decode().to_tuple("latents.npy", "scale.npy").batched(args.batch, partial=False)
    while True:
        for latents, _ in data:
            yield latents.size


def bare_preadv(args: argparse.Namespace) -> Iterator[int]:
    """The same ranges in the same order by as many threads, into batches' memory used in turn."""
    ranges = json.loads(args.ranges.read_text())
    files = {path: os.open(path, os.O_RDONLY) for path in {path for path, _, _ in ranges}}
    batches = [ranges[at : at + args.batch] for at in range(0, len(ranges), args.batch)]
    size = sum(length for _, _, length in batches[0])
    slabs = [memoryview(np.zeros(size, np.uint8)) for _ in range(args.slabs)]
    numbers = itertools.count()
    left = [len(batch) for batch in batches]
    ready = [threading.Event() for _ in batches]
    free = threading.Semaphore(args.slabs * args.batch)
    lock = threading.Lock()

    def work() -> None:
        while True:
            free.acquire()  # before the number: who has one must never wait for later ones
            index, place = divmod(next(numbers), args.batch)
            if index >= len(batches):
                return
            path, offset, length = batches[index][place]
            slab = slabs[index % args.slabs]
            at = place * length
            os.preadv(files[path], [slab[at : at + length]], offset)
            with lock:
                left[index] -= 1
                if not left[index]:
                    ready[index].set()

    for _ in range(args.threads):
        threading.Thread(target=work, daemon=True).start()
    for index, batch in enumerate(batches):
        ready[index].wait()
        for _ in batch:
            free.release()
        yield sum(length for _, _, length in batch)


WAYS = {
    "streaming_dataloader_2_workers": streaming_dataloader,
    "streaming_plain": streaming_plain,
    "webdataset": webdataset_batches,
    "bare_preadv": bare_preadv,
}


def main() -> None:
    """Run one way, and print what it took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--ranges", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slabs", type=int, default=4)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    told = measure(WAYS[args.way](args), args.bytes)
    print(json.dumps(told))
    sys.stdout.flush()
    os._exit(0)  # Streaming leaves threads and shared memory behind that are not ours to wait for


if __name__ == "__main__":
    main()
