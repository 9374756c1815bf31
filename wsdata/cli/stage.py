"""``wsdata stage STAGE STEP ORDER.json``: one step, as pools run it.

Inside a Dagster Pipes session the report goes back as a message and logs reach the UI; in a
shell the report is printed.
"""

import contextlib
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from wsdata.errors import WsdataError

ORDER_FORMAT = 1
PIPES = "DAGSTER_PIPES_CONTEXT"


def run_stage(stage: str, step: str, path: Path) -> dict[str, Any]:
    """Run the order in a file ``{"format_version": 1, "store": address, "order": {...}}``.

    Returns:
        The report, as JSON.

    Raises:
        WsdataError: The file is no order of that step, or the step fails.
    """
    from wsdata.orders import execute
    from wsdata.records import Order
    from wsdata.steps import find_step
    from wsdata.store import open_store

    body = json.loads(path.read_text(encoding="utf-8"))
    if body.get("format_version") != ORDER_FORMAT:
        raise WsdataError(f"{path}: order file format {body.get('format_version')!r}, expected 1")
    order = Order.from_json(body["order"])
    if (order.stage, order.step) != (stage, step):
        raise WsdataError(f"{path} orders {order.stage}/{order.step}, not {stage}/{step}")
    with _pipes() as pipes:
        found = find_step(stage, step)
        report = execute(order, found.function, open_store(body["store"]))
        if pipes is not None:
            pipes.report_custom_message({"wsdata_report": report.to_json()})
    return report.to_json()


@contextlib.contextmanager
def _pipes():  # noqa: ANN202
    if PIPES not in os.environ:
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
        yield None
        return
    import dagster_pipes  # a leaf without dependencies; Dagster itself is never imported

    with dagster_pipes.open_dagster_pipes() as pipes:
        root = logging.getLogger()
        root.setLevel(logging.INFO)
        for handler in pipes.log.handlers:
            root.addHandler(handler)
        yield pipes


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent goes (Linux)."""
    import ctypes

    pr_set_pdeathsig = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def stage(args):  # noqa: ANN001, ANN201
    """``stage``."""
    from wsdata.cli.main import Answer

    die_with_parent()
    report = run_stage(args.stage, args.step, Path(args.order))
    is_piped = PIPES in os.environ  # then the report went back as a message
    return Answer(report, [] if is_piped else [json.dumps(report)])
