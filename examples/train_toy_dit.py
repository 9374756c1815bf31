"""Train a toy DiT on a dataset version, kill it, resume it: the loss curve is the same.

    python examples/train_toy_dit.py --store FOLDER --out FOLDER [--resume] [--world-size N]
    python examples/train_toy_dit.py --prove --store FOLDER --out FOLDER

A flow-matching transformer of two blocks, on latents and captions, on one CPU thread. What is to
be seen here is not the model but the loop around it: what a checkpoint holds (model, optimiser,
random state, and the loader's cursor of a few hundred bytes), and that a run which is killed and
resumed, with another number of ranks and other micro-batches, gives the same losses to the bit.

For that nothing may depend on who computes what. The order of samples is the plan's, free of
ranks. Noise is drawn by (seed, step, slot). Gradients are added up sample by sample in the order
of the global batch; the ranks of this toy take turns in one process, where real ones would each
take their slots and add up their sums (whose last bits then depend on how many they are).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from wsdata.loader.dataset import PlanDataset
from wsdata.shard.publish import published_versions
from wsdata.store import open_store

NUM_CHANNELS = 16  # of the latents
PATCH = 4  # latents along each side of a token
WIDTH, NUM_HEADS, NUM_BLOCKS = 64, 4, 2
NUM_WORDS = 1024  # rows of the table that words are hashed into


class Block(nn.Module):
    """Attention and an MLP, both modulated by time and caption."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, NUM_HEADS, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.modulation = nn.Linear(WIDTH, 6 * WIDTH)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(self, tokens_bnd: Tensor, condition_bd: Tensor) -> Tensor:
        """Return the tokens after this block."""
        a, b, c, d, e, f = self.modulation(functional.silu(condition_bd))[:, None].chunk(6, dim=-1)
        x = functional.layer_norm(tokens_bnd, (WIDTH,)) * (1 + a) + b
        tokens_bnd = tokens_bnd + c * self.attention(x, x, x, need_weights=False)[0]
        x = functional.layer_norm(tokens_bnd, (WIDTH,)) * (1 + d) + e
        return tokens_bnd + f * self.mlp(x)


class ToyDiT(nn.Module):
    """Predicts the velocity from latents to noise."""

    def __init__(self) -> None:
        super().__init__()
        values = NUM_CHANNELS * PATCH * PATCH
        self.enter = nn.Linear(values, WIDTH)
        self.words = nn.EmbeddingBag(NUM_WORDS, WIDTH, mode="mean")
        self.time = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(NUM_BLOCKS))
        self.leave = nn.Linear(WIDTH, values)

    def forward(self, latents_tchw: Tensor, time: float, caption: str) -> Tensor:
        """Return the velocity at a time in [0, 1], of the latents' shape."""
        frames, channels, height, width = latents_tchw.shape
        padded = functional.pad(latents_tchw, (0, -width % PATCH, 0, -height % PATCH))
        rows, columns = padded.shape[2] // PATCH, padded.shape[3] // PATCH
        grid = padded.reshape(frames, channels, rows, PATCH, columns, PATCH)
        tokens = self.enter(grid.permute(0, 2, 4, 1, 3, 5).reshape(1, -1, self.enter.in_features))
        tokens = tokens + _positions(frames, rows, columns)
        condition = self.time(_waves(torch.tensor([1000 * time]), WIDTH)) + self.words(
            torch.tensor(_hashed(caption)), torch.tensor([0])
        )
        for block in self.blocks:
            tokens = block(tokens, condition)
        grid = self.leave(tokens).reshape(frames, rows, columns, channels, PATCH, PATCH)
        return grid.permute(0, 3, 1, 4, 2, 5).reshape(padded.shape)[..., :height, :width]


def _hashed(caption: str) -> list[int]:
    """Rows of the words of a caption; row 0 stands for no caption."""
    return [1 + zlib.crc32(w.encode()) % (NUM_WORDS - 1) for w in caption.lower().split()] or [0]


def _waves(values_n: Tensor, num: int) -> Tensor:
    angles = values_n[:, None] * torch.exp(torch.arange(num // 2) * (-9.2 / (num // 2)))
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def _positions(frames: int, rows: int, columns: int) -> Tensor:
    axes = torch.meshgrid(
        *(torch.arange(n, dtype=torch.float32) for n in (frames, rows, columns)), indexing="ij"
    )
    parts = [_waves(axis.reshape(-1), n) for axis, n in zip(axes, (16, 24, 24), strict=True)]
    return torch.cat(parts, dim=-1)


def sample_loss(model: ToyDiT, latents_tchw: Tensor, caption: str, *, seed: int) -> Tensor:
    """Flow matching on one sample: noise and time are drawn by the seed alone."""
    draw = torch.Generator().manual_seed(seed)
    data = latents_tchw / latents_tchw.std().clamp_min(1e-6)
    noise = torch.randn(data.shape, generator=draw)
    time = torch.rand((), generator=draw).item()
    velocity = model((1 - time) * data + time * noise, time, caption)
    return functional.mse_loss(velocity, noise - data)


def open_ranks(args: argparse.Namespace, cursor: dict[str, Any] | None) -> list[PlanDataset]:
    """Open the loader of every rank, where a cursor says; how many there are is free."""
    ranks = [
        PlanDataset(
            version=args.version,
            store=args.store,
            rank=rank,
            world_size=args.world_size,
            micro_batch=args.micro_batch,
            num_threads=1,
        )
        for rank in range(args.world_size)
    ]
    for rank in ranks:
        if cursor is not None:
            rank.load_state_dict(cursor)
    return ranks


def global_batches(ranks: list[PlanDataset]) -> Iterator[list[dict[str, Any]]]:
    """Yield all pieces of each step: rank by rank, micro-batch by micro-batch."""
    iterators = [iter(rank) for rank in ranks]
    while True:
        pieces: list[dict[str, Any]] = []
        for iterator in iterators:
            is_last = False
            while not is_last:
                piece = next(iterator, None)
                if piece is None:
                    return
                pieces.append(piece)
                number, count = piece["micro"]
                is_last = number == count - 1
        yield pieces


def train_step(model: ToyDiT, optimiser: torch.optim.Optimizer, pieces: list[dict]) -> float:
    """Make one step over a global batch, and return its loss."""
    optimiser.zero_grad()
    num_samples = sum(len(piece["sample_ids"]) for piece in pieces)
    total, slot = 0.0, 0
    for piece in pieces:
        for latents_tchw, caption in zip(piece["latents"], piece["captions"], strict=True):
            seed = 1_000_003 * piece["step"] + slot
            loss = sample_loss(model, latents_tchw, caption, seed=seed) / num_samples
            loss.backward()
            total, slot = total + loss.item(), slot + 1
    optimiser.step()
    return total


def save_checkpoint(path: Path, **state: Any) -> None:
    """Write a checkpoint beside its name and rename it: a kill leaves the one before."""
    temp = path.with_suffix(".tmp")
    with temp.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temp.replace(path)


def train(args: argparse.Namespace) -> None:
    """Train up to `--steps`, from the beginning or from the checkpoint."""
    torch.manual_seed(args.seed)
    model = ToyDiT()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpoint, log = args.out / "checkpoint.pt", args.out / "losses.jsonl"
    lines: list[str] = []
    cursor = None
    if args.resume:
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        torch.set_rng_state(state["rng"])
        cursor = json.loads(state["cursor"])
        lines = log.read_text().splitlines()[: cursor["step"]]
        print(f"resumed at step {cursor['step']}, {len(state['cursor'])} bytes of cursor")
    log.write_text("".join(f"{line}\n" for line in lines))
    ranks = open_ranks(args, cursor)
    for pieces in global_batches(ranks):
        step = pieces[0]["step"]
        loss = train_step(model, optimiser, pieces)
        with log.open("a") as file:
            file.write(json.dumps({"step": step, "loss": loss.hex(), "about": loss}) + "\n")
        if step == args.kill_at:
            print(f"step {step}: killed", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if (step + 1) % args.checkpoint_every == 0 or step + 1 == args.steps:
            save_checkpoint(
                checkpoint,
                model=model.state_dict(),
                optimiser=optimiser.state_dict(),
                rng=torch.get_rng_state(),
                cursor=json.dumps(ranks[0].state_dict()),
            )
        if step + 1 >= args.steps:
            return


def read_losses(out: Path) -> list[tuple[int, str]]:
    """Steps and losses of a run, the losses to the bit."""
    lines = (out / "losses.jsonl").read_text().splitlines()
    return [(body["step"], body["loss"]) for body in map(json.loads, lines)]


def prove(args: argparse.Namespace) -> int:
    """Run undisturbed; run again, killed and resumed otherwise; compare. 0 where all is equal."""

    def run(name: str, *options: str) -> int:
        command = [sys.executable, __file__, "--store", args.store, "--version", args.version]
        command += ["--steps", str(args.steps), "--checkpoint-every", str(args.checkpoint_every)]
        command += ["--seed", str(args.seed), "--out", str(args.out / name), *options]
        return subprocess.run(command, check=False).returncode  # noqa: S603

    kill_at = args.steps * 2 // 3
    codes = [
        run("undisturbed"),
        run("killed", "--kill-at", str(kill_at)),
        run("killed", "--resume", "--world-size", str(args.world_size), "--micro-batch", "1"),
    ]
    if codes != [0, -signal.SIGKILL, 0]:
        print(f"exit codes {codes}, expected [0, {-signal.SIGKILL}, 0]")
        return 1
    one, other = read_losses(args.out / "undisturbed"), read_losses(args.out / "killed")
    print(f"{'step':>5}  {'undisturbed':>12}  killed at {kill_at}, then {args.world_size} ranks")
    for (step, loss), (_, again) in zip(one, other, strict=False):
        same = "same" if loss == again else "OTHER"
        print(f"{step:5}  {float.fromhex(loss):12.6f}  {float.fromhex(again):12.6f}  {same}")
    print("identical to the bit" if one == other else "the curves differ")
    return 0 if one == other else 1


def main() -> int:
    """Read the command line and train, or prove."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", required=True, help="address that holds training/")
    parser.add_argument("--version", help="default: the newest")
    parser.add_argument("--out", required=True, type=Path, help="checkpoint and losses")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--checkpoint-every", type=int, default=7)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--kill-at", type=int, metavar="STEP", help="end by SIGKILL after it")
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--micro-batch", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prove", action="store_true", help="kill, resume and compare")
    args = parser.parse_args()
    args.version = args.version or (published_versions(open_store(args.store)) or [None])[-1]
    if args.version is None:
        parser.error(f"{args.store} publishes no dataset version: `make run` makes one")
    args.out.mkdir(parents=True, exist_ok=True)
    if args.prove:
        return prove(args)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    train(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
