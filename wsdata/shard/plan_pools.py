"""Pools as ranges of rows: which atoms a phase admits, and how places in a pool map to rows.

Place p of a pool is its p-th row in ascending order, over all its ranges.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wsdata.errors import PlanError
from wsdata.shard.plan_atoms import Atom
from wsdata.shard.plan_mixture import Pool

I64 = NDArray[np.int64]


class PoolRows:
    """The rows of all pools, as a few ranges for each."""

    def __init__(self, pools: Sequence[Sequence[Atom]]) -> None:
        """Take each pool's atoms, in the order of their rows."""
        self._atoms = [list(atoms) for atoms in pools]
        atoms = [atom for mine in pools for atom in mine]
        sizes: I64 = np.array([atom.num_samples for atom in atoms], dtype=np.int64)
        # All ranges stand one after the other: `bases` is where each begins, `origins` each pool.
        self._bases: I64 = np.cumsum(sizes) - sizes
        self._shifts: I64 = np.array([a.first_row for a in atoms], dtype=np.int64) - self._bases
        lengths = np.array([sum(a.num_samples for a in mine) for mine in pools], dtype=np.int64)
        self._origins: I64 = np.cumsum(lengths) - lengths

    def rows(self, pools: I64, places: I64) -> I64:
        """Row of each place in [0, samples of its pool)."""
        at = self._origins[pools] + places
        return at + self._shifts[np.searchsorted(self._bases, at, side="right") - 1]

    def places(self, pool: int, rows: I64) -> I64:
        """Places of those rows that are one pool's, ascending."""
        base, found = 0, [np.zeros(0, dtype=np.int64)]
        for atom in self._atoms[pool]:
            mine = rows[(rows >= atom.first_row) & (rows < atom.end_row)]
            found.append(mine - atom.first_row + base)
            base += atom.num_samples
        return np.unique(np.concatenate(found))


def pool_atoms(atoms: Sequence[Atom], pool: Pool) -> list[Atom]:
    """Atoms of a pool, in the order of their rows."""
    return [
        atom
        for atom in atoms
        if (atom.stream, atom.bucket) == (pool.stream, pool.bucket) and atom.tier in pool.tiers
    ]


def admit_pools(
    atoms: Sequence[Atom], phase: Mapping[str, Any], pools: list[Pool]
) -> dict[int, Pool]:
    """Find the pools that a phase admits, by index in `pools`; new ones are appended to it.

    A pool names only the tiers that it has samples of, so phases that admit the same samples
    share the pool and go on with its epochs.
    """
    present: dict[tuple[str, str], list[Atom]] = {}
    for atom in sorted(atoms, key=lambda atom: (atom.stream, atom.bucket, atom.tier)):
        is_weighted = phase["weights"].get(atom.stream, 0) > 0
        if is_weighted and atom.tier in phase["tiers"] and _rung(atom) in phase["rungs"]:
            present.setdefault((atom.stream, atom.bucket), []).append(atom)
    known = {(pool.stream, pool.bucket, pool.tiers): i for i, pool in enumerate(pools)}
    admitted: dict[int, Pool] = {}
    for (stream, bucket), members in present.items():
        name = (stream, bucket, tuple(atom.tier for atom in members))
        if name not in known:
            known[name] = len(pools)
            pools.append(_make_pool(members))
        admitted[known[name]] = pools[known[name]]
    return admitted


def check_pools(pools: Sequence[Pool], atoms: Sequence[Atom]) -> None:
    """Refuse a plan whose pools are not made of its atoms.

    Raises:
        PlanError: A pool has another number of samples, or atoms overlap.
    """
    for one, other in pairwise(atoms):
        if other.first_row < one.end_row:
            raise PlanError(
                f"atoms of {one.bucket} {one.stream} {one.tier} and {other.bucket} {other.stream} "
                f"{other.tier} have rows in common: the plan was not written by wsdata"
            )
    for pool in pools:
        found = sum(atom.num_samples for atom in pool_atoms(atoms, pool))
        if found != pool.num_samples:
            raise PlanError(
                f"pool {pool.name} has {found} samples in its atoms, {pool.num_samples} were "
                "planned: the plan was not written by wsdata"
            )


def check_atoms(planned: Sequence[Atom], indexed: Sequence[Atom]) -> None:
    """Refuse an index that cannot be the one that was planned.

    Raises:
        PlanError: A planned atom is not in the index, or is another one there.
    """
    there = {(atom.bucket, atom.stream, atom.tier): atom for atom in indexed}
    for atom in planned:
        found = there.get((atom.bucket, atom.stream, atom.tier))
        if found == atom:
            continue
        told = "no samples" if found is None else f"{found.num_samples} samples"
        if found is not None and found.num_samples == atom.num_samples:
            told = "other samples, or the same in other rows,"
        raise PlanError(
            f"{atom.bucket}, stream {atom.stream}, tier {atom.tier} has {told} in this dataset "
            f"index, {atom.num_samples} were planned: read the index that the plan was made from"
        )


def _rung(atom: Atom) -> str:
    return atom.bucket.split("/")[0]


def _make_pool(atoms: Sequence[Atom]) -> Pool:
    num_samples = sum(atom.num_samples for atom in atoms)
    num_tokens = sum(atom.num_tokens for atom in atoms)
    if num_tokens < 1:
        raise PlanError(
            f"stream {atoms[0].stream!r}, bucket {atoms[0].bucket}: {num_samples} samples count "
            f"{num_tokens} latent tokens, so no share can be worked out: rebuild the manifest"
        )
    return Pool(
        stream=atoms[0].stream,
        bucket=atoms[0].bucket,
        tiers=tuple(atom.tier for atom in atoms),
        num_samples=num_samples,
        num_tokens=num_tokens,
    )
