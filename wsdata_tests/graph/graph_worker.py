"""``wsdata``, with the fabricated steps in its registry."""

import sys

from wsdata import steps
from wsdata.__main__ import main
from wsdata_tests.graph.graph_steps import FABRICATED

steps.STEPS.clear()
steps.STEPS.update(FABRICATED)
sys.exit(main())
