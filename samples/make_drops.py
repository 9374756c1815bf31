"""Put the three sample drops into the landing zone, and their eval listing before them.

Run again, it changes nothing. The media and their licences are told in ``SOURCES.tsv``.
"""

import csv
import sys
from pathlib import Path

from wsdata.deployment import load_deployment
from wsdata.ingest.delivery import Declaration, make_drop
from wsdata.ingest.landing import open_landing

HERE = Path(__file__).parent
DATE = "20261101"
DROPS: dict[str, tuple[Declaration, list[str]]] = {
    "licensed": (
        Declaration(source_tier="licensed", source="openfilms", license_id="see-records"),
        ["bbb_0_30.webm", "sintel_trailer_30s.mp4", "flower.webm", "stream_of_water.webm",
         "astronaut.png", "coffee.png", "chelsea.png"],
    ),
    "crawl": (
        Declaration(source_tier="crawl", source="openweb", license_id="see-records"),
        ["nasa_13013.mp4", "pattern_hd.mp4", "bottle.mp4", "derived_friday_burnedtext_hevc.mp4",
         "derived_stream_vp9_opus.webm", "derived_flower_av1.mp4", "rocket.jpg",
         "hubble_deep_field.jpg", "gravel.png"],
    ),
    "synthetic": (
        Declaration(
            source_tier="synthetic", source="rendered", license_id="CC0-1.0",
            generator="samples/render_spheres.py and libavfilter testsrc",
        ),
        ["spheres.mp4", "testsrc_av1.mkv"],
    ),
}  # fmt: skip


def main() -> int:
    """Make what is not there yet, and name the drops."""
    deployment = load_deployment()
    home = Path(deployment.home)
    home.mkdir(parents=True, exist_ok=True)
    eval_list = Path(deployment.eval_list)
    if not eval_list.is_file():  # before anything is landed: the carve comes first
        eval_list.write_text((HERE / "eval_list.txt").read_text())
    with (HERE / "SOURCES.tsv").open(encoding="utf-8") as handle:
        sources = {row["file"]: row for row in csv.DictReader(handle, delimiter="\t")}
    for declaration, names in DROPS.values():
        records = [_record(sources[name], declaration.source_tier) for name in names]
        key = make_drop(
            [HERE / "media" / name for name in names],
            open_landing(deployment.landing),
            declaration,
            records=records,
            date=DATE,
        )
        print(f"drop {key}: {len(names)} files")
    return 0


def _record(source: dict[str, str], tier: str) -> dict[str, object]:
    record: dict[str, object] = {
        "path": source["file"],
        "license_id": source["license"],
        "title": source["title"],
        "attribution": source["source"],
    }
    if tier == "crawl":
        record |= {
            "crawl_url": f"https://example.org/{source['file']}",
            "fetched_at": "2026-10-31T12:00:00+00:00",
            "robots_allowed": True,
        }
    return record


if __name__ == "__main__":
    sys.exit(main())
