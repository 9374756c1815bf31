"""Commands that ask: funnel, lineage, plan, quarantine, takedown, fsck, gc."""

import argparse
import sys
from typing import Any

from wsdata.cli.exports import holding_lines
from wsdata.cli.main import Answer
from wsdata.cli.opened import open_deployment, table


def funnel(args: argparse.Namespace) -> Answer:
    """``funnel``."""
    from wsdata.observability.funnel import funnel as count

    opened = open_deployment(args)
    data = count(
        opened.ledger, opened.store, drop=args.drop, source=args.source, version=args.version
    )
    return Answer(data, funnel_lines(data))


def funnel_lines(data: dict[str, Any]) -> list[str]:
    """Lay a funnel out as text; a terminal is given the beginnings of long reasons."""
    totals = data["totals"]
    rows: list[list[object]] = []
    for name, value in totals.items():
        if isinstance(value, dict):
            rows += [[f"{name}: {key}", count] for key, count in value.items() if count]
        else:
            rows.append([name, value])
    width = 70 if sys.stdout.isatty() else None
    files = [
        [f["drop"], f["path"], f["status"], f["clips"], (f["reason"] or "")[:width]]
        for f in data["files"]
    ]
    return [
        *table(["what", "number"], rows),
        "",
        *table(["drop", "file", "status", "clips", "why"], files),
    ]


def lineage_sample(args: argparse.Namespace) -> Answer:
    """``lineage sample``."""
    from wsdata.observability.lineage import lineage_sample as ask

    opened = open_deployment(args)
    data = ask(opened.ledger, opened.store, args.id)
    return Answer(data, _clip_lines(data))


def lineage_clip(args: argparse.Namespace) -> Answer:
    """``lineage clip``."""
    from wsdata.observability.lineage import lineage_clip as ask

    opened = open_deployment(args)
    data = ask(opened.ledger, opened.store, args.id)
    return Answer(data, _clip_lines(data))


def lineage_asset(args: argparse.Namespace) -> Answer:
    """``lineage asset``."""
    from wsdata.observability.lineage import lineage_asset as ask

    opened = open_deployment(args)
    data = ask(opened.ledger, opened.store, args.id)
    lines = [f"raw asset {data['asset_id']} of {', '.join(data['drops'])}"]
    lines += [f"  {p['path']}: {p['license_id']} by {p['source']}" for p in data["provenance"]]
    if data["in_vault"]:
        lines.append("  sealed in the eval vault")
    for clip in data["clips"]:
        lines += ["", *_clip_lines(clip)]
    return Answer(data, lines)


def _clip_lines(clip: dict[str, Any]) -> list[str]:
    from wsdata.lifecycle.served_use import use_lines

    span = clip["span"]
    lines = [
        f"clip {clip['clip_id']}  {span['start_s']:.3f}-{span['end_s']:.3f} s  of {clip['drop']}"
        + ("  TOMBSTONED" if clip["tombstoned"] else "")
    ]
    lines += [
        f"  from {p['path']} ({p['source_tier']}, {p['source']}, {p['license_id']}) in {p['drop']}"
        for p in clip["provenance"]
    ]
    lines += [
        f"  {s['filter']}.{s['score_name']} = "
        f"{s['status'] if s['score'] is None else round(s['score'], 4)}  [{s['model_version']}]"
        for s in clip["scores"]
    ]
    lines += [
        f"  {c['variant']}: {c['text']}  [{c['captioner_version']}]" for c in clip["captions"]
    ]
    lines += [
        f"  {p['sample_id']} in shard {p['shard'][:12]} row {p['row']}"
        + ("" if p["psnr_db"] is None else f", {p['psnr_db']:.1f} dB")
        for p in clip["placements"]
    ]
    lines += [
        f"  {e['version']} leaves it out: {e['reason']}, {e['detail']}" for e in clip["exclusions"]
    ]
    lines += [
        f"  {m['version']}: stream {m['stream']}, tier {m['tier']}" for m in clip["manifests"]
    ]
    lines += [
        f"  {p['version']} leaves {len(p['samples'])} samples of it out from step "
        f"{p['from_step']} on: steps before may serve them"
        for p in clip["patched"]
    ]
    lines += [f"  {line}" for line in use_lines(clip["served"])]
    lines += [f"  not known: {each}" for each in clip["served_unknown"]]
    return lines + holding_lines(clip["exports"])


def plan_show(args: argparse.Namespace) -> Answer:
    """``plan show``."""
    from wsdata.lifecycle.plans import load_indexed_plan

    opened = open_deployment(args)
    plan, index = load_indexed_plan(opened.ledger, opened.store, args.version)
    planned = plan.samples(args.step)
    placements = index.placements([sample.row for sample in planned])
    samples = [
        {
            "slot": s.slot,
            "clip_id": s.clip_id,
            "sample_id": s.sample_id,
            "stream": s.stream,
            "epoch": s.epoch,
            "shard": placement.shard,
            "row": placement.row,
        }
        for s, placement in zip(planned, placements, strict=True)
    ]
    bucket = plan.bucket(args.step)
    data = {"version": args.version, "step": args.step, "bucket": bucket, "samples": samples}
    phase = plan.phase(args.step).name
    lines = [f"step {args.step} of {args.version}: bucket {bucket}, phase {phase}"]
    lines += table(
        ["slot", "clip", "stream", "epoch", "shard", "row"],
        [
            [s["slot"], s["clip_id"], s["stream"], s["epoch"], s["shard"][:12], s["row"]]
            for s in samples
        ],
    )
    return Answer(data, lines)


def plan_where(args: argparse.Namespace) -> Answer:
    """``plan where``."""
    from wsdata.ids import parse_clip_id
    from wsdata.lifecycle.plans import load_plan
    from wsdata.lifecycle.served_use import ServedRuns, use_lines, uses

    opened = open_deployment(args)
    parse_clip_id(args.clip)
    plan = load_plan(opened.ledger, opened.store, args.version)
    until = plan.num_steps if args.until is None else args.until
    served = [
        {"step": s.step, "slot": s.slot, "epoch": s.epoch} for s in plan.where(args.clip, until)
    ]
    runs = ServedRuns(opened.ledger, opened.store)
    times, unknown = runs.times([args.clip], version=args.version)
    data = {"version": args.version, "clip_id": args.clip, "until": until, "served": served}
    data |= {"runs": uses(times), "unknown": unknown}
    lines = [f"{args.clip} in {args.version}: planned {len(served)} times before step {until}"]
    lines += table(["step", "slot", "epoch"], [[s["step"], s["slot"], s["epoch"]] for s in served])
    lines += use_lines(data["runs"], by_version=False) or ["no run has told that it was served it"]
    lines += [f"not known: {each}" for each in unknown]
    return Answer(data, lines)


def _choice(args: argparse.Namespace):  # noqa: ANN202
    from wsdata.lifecycle.quarantine import Choice

    return Choice(
        assets=tuple(getattr(args, "id", ())),
        drop=args.drop or "",
        source=args.source or "",
        matching=args.matching or "",
    )


def quarantine_list(args: argparse.Namespace) -> Answer:
    """``quarantine list``."""
    from wsdata.lifecycle.quarantine import list_quarantined

    opened = open_deployment(args)
    choice = _choice(args)
    rows = list_quarantined(opened.ledger, opened.store, choice)
    lines = table(
        ["raw asset", "drop", "file", "since", "last tried", "attempts", "released", "reason"],
        [
            [r["asset_id"][:16], r["drop"], r["path"], (r["since"] or "")[:16],
             (r["tried"] or "")[:16], r["attempts"], r["released"], r["reason"]]
            for r in rows
        ],
    )  # fmt: skip
    return Answer(
        rows,
        lines
        if rows
        else [
            f"nothing is in quarantine that fits{choice}"
            if f"{choice}"
            else "nothing is in quarantine"
        ],
    )


def quarantine_release(args: argparse.Namespace) -> Answer:
    """``quarantine release``."""
    from wsdata.lifecycle.quarantine import release_all

    opened = open_deployment(args)
    asset_ids = release_all(opened.ledger, _choice(args), args.reason, is_dry_run=args.dry_run)
    verb = "would be" if args.dry_run else "will be"
    lines = [f"{len(asset_ids)} {verb} tried once more by the next `wsdata run`", *asset_ids]
    return Answer({"asset_ids": asset_ids, "reason": args.reason}, lines)


def takedown_request(args: argparse.Namespace) -> Answer:
    """``takedown request``."""
    from wsdata.lifecycle.takedown import request_takedown
    from wsdata.lifecycle.tombstone import Criteria

    opened = open_deployment(args)
    criteria = Criteria(
        assets=tuple(args.asset),
        urls=tuple(args.url),
        sources=tuple(args.source),
        licenses=tuple(args.license),
    )
    data = request_takedown(
        opened.ledger, opened.store, criteria, reason=args.reason, is_dry_run=args.dry_run
    )
    verb = "would exclude" if args.dry_run else "excludes"
    return Answer(data, _takedown_lines(data, verb))


def takedown_report(args: argparse.Namespace) -> Answer:
    """``takedown report``."""
    from wsdata.lifecycle.takedown import report_takedown

    opened = open_deployment(args)
    data = report_takedown(opened.ledger, opened.store, args.id)
    return Answer(data, [*_takedown_lines(data, "excludes"), f"digest {data['report_digest']}"])


def _takedown_lines(data: dict[str, Any], verb: str) -> list[str]:
    from wsdata.lifecycle.served_use import use_lines

    lines = [
        f"takedown {data['request_id']} {verb} {len(data['assets'])} raw assets, "
        f"{len(data['twins'])} twins and {len(data['clips'])} clips from {data['next_version']} on"
    ]
    for use in data["versions"]:
        first = use["first_step"]
        served = "planned at no step"
        if first is not None:
            served = f"planned at {use['num_steps']} steps, first at {first}"
        lines.append(f"  {use['version']}: {use['samples']} samples, {served}")
        lines += [f"    {line}" for line in use_lines(use["served"], by_version=False)]
        lines += [f"    not known: {each}" for each in use["served_unknown"]]
    return lines + holding_lines(data["exports"])


def fsck(args: argparse.Namespace) -> Answer:
    """``fsck``."""
    from wsdata.lifecycle.fsck import check_store

    opened = open_deployment(args)
    data = check_store(
        opened.ledger, opened.store, vault=opened.deployment.vault, is_deep=args.deep
    )
    lines = [
        f"{data['objects']} objects of rows and {data['blobs']} blobs: "
        f"{len(data['missing'])} missing, {len(data['damaged'])} damaged, "
        f"{len(data['orphans'])} orphans"
    ]
    lines += [f"  missing {m['key']}: named by {m['named_by']}" for m in data["missing"]]
    lines += [f"  damaged {m['key']}: {m['fault']}" for m in data["damaged"]]
    faults = [*data["missing"], *data["damaged"]]
    lines += dict.fromkeys(
        f"  {each['named_by']}: {each['to_do']}" for each in faults if "to_do" in each
    )
    if faults:
        lines.append("`wsdata run` makes again what is missing; delete what is damaged first")
    return Answer(data, lines, code=0 if data["ok"] else 1)


def gc(args: argparse.Namespace) -> Answer:
    """``gc``."""
    from wsdata.lifecycle.retention import collect_garbage

    opened = open_deployment(args)
    garbage = collect_garbage(
        opened.ledger, opened.store, is_applied=args.apply, min_age_s=args.min_age_hours * 3600
    )
    data = [{"key": v.key, "size_bytes": v.size_bytes, "reason": v.reason} for v in garbage]
    total = sum(v.size_bytes for v in garbage)
    verb = "deleted" if args.apply else "could be deleted (--apply does it)"
    return Answer(
        {"applied": args.apply, "objects": data, "bytes": total},
        [*(v.key for v in garbage), f"{len(garbage)} objects, {total:,} bytes {verb}"],
    )
