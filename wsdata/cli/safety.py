"""``wsdata safety``: what matches a safety list. Words and numbers; never a picture."""

import argparse

from wsdata.cli.exports import holding_lines
from wsdata.cli.main import Answer
from wsdata.cli.opened import open_deployment, table


def list_hits(args: argparse.Namespace) -> Answer:
    """``safety list``."""
    from wsdata.lifecycle.safety_reports import listed_assets, lists_in_force

    ledger = open_deployment(args).ledger
    data = {"lists": lists_in_force(ledger), "assets": listed_assets(ledger)}
    lines = table(
        ["list", "entries", "digest", "read at"],
        [[r["list"], r["num_entries"], r["sha256"][:12], r["read_at"]] for r in data["lists"]],
    )
    if not data["lists"]:
        lines = ["no safety list was read yet: see docs/safety.md"]
    lines.append("")
    if not data["assets"]:
        return Answer(data, [*lines, "nothing matches a safety list"])
    lines += table(
        ["raw asset", "vault", "clips", "hits", "first seen", "nearest", "noted"],
        [
            [
                row["asset_id"][:16],
                "yes" if row["in_vault"] else "",
                row["num_clips"],
                len(row["hits"]),
                row["first_seen_at"],
                _nearest(row["hits"]),
                row["notes"][-1]["note"][:40] if row["notes"] else "nothing yet",
            ]
            for row in data["assets"]
        ],
    )
    return Answer(data, lines)


def _nearest(hits: list[dict]) -> str:
    hit = min(hits, key=lambda each: (each["distance"], each["list"], each["entry"]))
    return f"{hit['list']} {hit['entry']} at {hit['distance']} bits"


def report(args: argparse.Namespace) -> Answer:
    """``safety report``."""
    from wsdata.lifecycle.safety_reports import report_asset

    opened = open_deployment(args)
    data = report_asset(opened.ledger, opened.store, args.id, note=args.note)
    lines = [
        f"raw asset {data['asset_id']}, first seen {data['first_seen_at']}",
        f"bytes: {data['bytes']['key']} in the {data['bytes']['where']}, held",
    ]
    lines += [
        f"  matches {hit['list']} {hit['entry']} ({hit['source'] or 'no source told'}) at "
        f"{hit['distance']} of 256 bits, at {hit['time_s']:.2f} s, in {hit['drop']}"
        for hit in data["hits"]
    ]
    lines += [
        f"  from {file['path']} of {file['drop']}, {file['source']}"
        + (f", {file['crawl_url']} at {file['fetched_at']}" if file["crawl_url"] else "")
        for file in data["files"]
    ]
    lines.append(f"withheld: {len(data['clips'])} clips, {len(data['twins'])} near duplicates")
    for use in data["versions"]:
        first = use["first_step"]
        served = f"first served at step {first}" if first is not None else "served at no step"
        lines.append(f"  {use['version']}: {use['samples']} samples, {served}")
    lines += holding_lines(data["exports"])
    lines += [f"noted {note['at']}: {note['note']}" for note in data["notes"]]
    return Answer(data, [*lines, f"digest {data['report_digest']}"])
