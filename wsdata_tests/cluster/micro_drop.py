"""The micro-drop: a video, a test card and a still. As a program: into the deployment at hand."""

import sys
from pathlib import Path

from wsdata.deployment import load_deployment
from wsdata.ids import DropKey
from wsdata.ingest.delivery import Declaration, make_drop
from wsdata.ingest.landing import LandingZone, open_landing

MEDIA = Path(__file__).parents[2] / "samples" / "media"
MICRO = ("stream_of_water.webm", "testsrc_av1.mkv", "coffee.png")
DECLARED = Declaration(source_tier="licensed", source="micro", license_id="CC0-1.0")


def make_micro_drop(landing: LandingZone) -> DropKey:
    """Deliver it, and return its key."""
    return make_drop([MEDIA / name for name in MICRO], landing, DECLARED, date="20261101")


def main() -> int:
    """Make the drop."""
    print(make_micro_drop(open_landing(load_deployment().landing)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
