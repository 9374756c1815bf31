"""``wsdata dataset``: dataset versions."""

import argparse
import datetime as dt
import time
from dataclasses import asdict
from pathlib import Path

import polars as pl

from wsdata import tables
from wsdata.catalog.objects import read_table
from wsdata.cli.main import Answer
from wsdata.cli.opened import Opened, open_deployment, table
from wsdata.cli.progress import progress_line
from wsdata.errors import WsdataError
from wsdata.lifecycle.versions import (
    all_versions,
    base_of,
    left_out,
    require_version,
    summarize,
)


def list_versions(args: argparse.Namespace) -> Answer:
    """``dataset list``."""
    opened = open_deployment(args)
    found = [
        summarize(opened.ledger, opened.store, version) for version in all_versions(opened.ledger)
    ]
    lines = table(
        ["version", "parent", "as of", "samples", "shards", "lost", "manifest"],
        [
            [v.version, v.parent, v.as_of_date, v.num_samples, v.num_shards, v.num_lost,
             v.manifest_digest[:16]]
            for v in found
        ],
    )  # fmt: skip
    return Answer([asdict(v) for v in found], lines if found else ["no dataset version yet"])


def cut(args: argparse.Namespace) -> Answer:
    """``dataset cut``: through Dagster, like the main job."""
    from wsdata.cli.run import launch
    from wsdata.ids import parse_version
    from wsdata.recipe import load_recipe

    opened = open_deployment(args)
    load_recipe(Path(args.recipe))
    options = ["--recipe", str(Path(args.recipe).absolute())]
    if args.version:
        if parse_version(args.version)[1]:
            raise ValueError(f"{args.version} names a patch: use `wsdata dataset patch`")
        options += ["--version", args.version]
    if args.as_of_date:
        dt.date.fromisoformat(args.as_of_date)
        options += ["--as-of-date", args.as_of_date]
    return launch(opened.deployment.home, ["cut", *options, *(["--json"] if args.json else [])])


def diff(args: argparse.Namespace) -> Answer:
    """``dataset diff``."""
    from wsdata.curate.diff import diff_manifests

    opened = open_deployment(args)
    sides = []
    for version in (args.old, args.new):
        require_version(opened.ledger, version)
        manifest = read_table(opened.ledger, opened.store, "manifests", base_of(version))
        exclusions = read_table(opened.ledger, opened.store, "exclusions", base_of(version))
        is_out = manifest["sample_id"].is_in(left_out(opened.ledger, version))
        patched = [
            {"subject": subject, "asset_id": asset, "reason": "patched", "detail": version}
            for name in ("clip_id", "sample_id")
            for subject, asset in manifest.filter(is_out)
            .select(name, "asset_id").unique().sort(name).iter_rows()
        ]  # fmt: skip
        told = pl.concat([exclusions, tables.rows_of("exclusions", patched)])
        sides += [manifest.filter(~is_out), told]
    rows = diff_manifests(*sides).to_dicts()
    data = {"old": args.old, "new": args.new, "changes": rows}
    lines = table(list(rows[0]), [list(row.values()) for row in rows]) if rows else ["no change"]
    return Answer(data, lines)


def patch(args: argparse.Namespace) -> Answer:
    """``dataset patch``."""
    from wsdata.lifecycle.patch import patch_version

    opened = open_deployment(args)
    if args.again:
        if args.exclude is not None or args.from_step is not None:
            raise ValueError(
                f"--again publishes {args.version} as the catalog knows it: leave out --exclude "
                "and --from-step, or name the version to patch and leave out --again"
            )
        return _patch_again(opened, args.version)
    if args.exclude is None or args.from_step is None:
        raise ValueError("a patch needs --exclude FILE and --from-step N, or --again alone")
    path = Path(args.exclude)
    if not path.is_file():
        raise WsdataError(f"{path} is not a file: list asset, clip or sample ids, one a line")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise WsdataError(
            f"{path} is no text, byte {error.start} is none of any: expected asset, clip or sample "
            "ids, one a line, in UTF-8"
        ) from error
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    made = patch_version(
        opened.ledger, opened.store, args.version, [line for line in lines if line],
        from_step=args.from_step,
    )  # fmt: skip
    return Answer(
        asdict(made),
        [
            f"{made.version}: {made.parent} without {len(made.excluded)} samples from step "
            f"{made.from_step} on, {made.num_changed_slots} slots changed; plan "
            f"{made.plan_id[:16]}",
            *([] if made.num_changed_slots else [
                f"nothing changed: {made.parent} serves none of these samples from step "
                f"{made.from_step} on, and {made.version} serves what it does"
            ]),
        ],
    )  # fmt: skip


def _patch_again(opened: Opened, version: str) -> Answer:
    from wsdata.lifecycle.patch_mend import mend_patch

    keys = mend_patch(opened.ledger, opened.store, version)
    lines = [f"published again: {key}" for key in keys]
    return Answer({"version": version, "keys": keys}, lines or [f"{version} is whole"])


def pin(args: argparse.Namespace) -> Answer:
    """``dataset pin``: pin a version or patch that is not, and say what its pin holds."""
    from wsdata.lifecycle.pins import keys_of_pins, pin_version

    opened = open_deployment(args)
    is_new = pin_version(opened.ledger, opened.store, args.version)
    held = keys_of_pins(opened.ledger)
    keys = held[args.version]
    base = base_of(args.version)
    of_it = [
        name for name in all_versions(opened.ledger)
        if name not in (args.version, base) and base_of(name) == args.version
    ]  # fmt: skip
    patches = {name: name in held for name in of_it}
    told = f"{args.version} {'is pinned now' if is_new else 'is pinned'}: {len(keys):,} objects"
    if args.version != base:
        told += f", those of its base {base} among them"
    lines = [f"{told}, which garbage collection never deletes", *keys]
    if patches:
        words = [f"{name} ({'pinned' if it else 'not pinned'})" for name, it in patches.items()]
        lines.insert(1, f"pointers and plans of its patches have pins of their own: "
                        f"{', '.join(words)}")  # fmt: skip
    data = {"version": args.version, "is_new": is_new, "keys": keys, "patches": patches}
    return Answer(data, lines)


def unpin(args: argparse.Namespace) -> Answer:
    """``dataset unpin``."""
    from wsdata.lifecycle.pins import keys_of_pins, unpin_version

    opened = open_deployment(args)
    before = keys_of_pins(opened.ledger).get(args.version, [])
    unpin_version(opened.ledger, args.version, args.reason)
    after = keys_of_pins(opened.ledger)
    others = {name: len(kept) for name, keys in after.items() if (kept := {*before} & {*keys})}
    free = sorted({*before}.difference(*after.values()))
    lines = [
        f"{args.version} is not pinned any more: of {len(before):,} objects no pin holds "
        f"{len(free):,} now; `wsdata gc` says which of them nothing else names"
    ]
    lines += [f"  the pin of {name} still holds {num:,} of them" for name, num in others.items()]
    return Answer({"version": args.version, "free": free, "still_pinned_by": others}, lines)


def pins(args: argparse.Namespace) -> Answer:
    """``dataset pins``."""
    from wsdata.lifecycle.pins import list_pins

    found = list_pins(open_deployment(args).ledger)
    lines = table(
        ["version", "pinned", "objects", "held by no other pin", "why not"],
        [
            [p.version, "yes" if p.is_pinned else "no", p.num_objects, p.num_own, p.reason]
            for p in found
        ],
    )
    return Answer([asdict(p) for p in found], lines if found else ["no dataset version yet"])


def sync(args: argparse.Namespace) -> Answer:
    """``dataset sync``: needs the store alone, so a trainer's identity will do."""
    from wsdata.deployment import load_deployment
    from wsdata.lifecycle.sync import sync_version
    from wsdata.observability.cost import BYTES_PER_TB, EGRESS_USD_PER_TB
    from wsdata.store import open_store

    deployment = load_deployment(Path(args.home) if args.home else None)
    started_s = time.monotonic()
    progress = progress_line("objects", "to copy" if args.dry_run else "copied")
    done = sync_version(
        deployment.open_store(), open_store(args.store), args.version, num_threads=args.threads,
        is_deep=args.deep, is_dry_run=args.dry_run, progress=progress,
    )  # fmt: skip
    seconds = time.monotonic() - started_s
    low, high = (done.bytes_copied / BYTES_PER_TB * usd for usd in EGRESS_USD_PER_TB)
    verb = "would copy" if args.dry_run else "copied"
    state = "published" if done.is_published else "not published"
    lines = [
        f"{', '.join(done.versions)}: {done.num_objects:,} objects; {verb} {done.num_copied:,} "
        f"({done.bytes_copied:,} bytes), there already {done.num_skipped:,} "
        f"({done.bytes_skipped:,} bytes)",
        *(f"put anew, its bytes were wrong: {key}" for key in done.repaired),
        f"egress at list price: {low:,.2f} to {high:,.2f} USD",
        f"{done.version} is {state} in {done.target}, {seconds:.1f} s",
    ]
    return Answer({**asdict(done), "egress_usd": [round(low, 4), round(high, 4)]}, lines)
