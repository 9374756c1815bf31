"""``wsdata stage STAGE STEP ORDER``: one step, as pools run it.

An order is a file, or with ``--store`` an object of that store, where ``--report`` then puts the
report: a pod shares nothing else with who ordered it. Inside a Dagster Pipes session logs reach
the UI, and a report that is not put goes back as a message; in a shell the report is printed.
"""

import contextlib
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from wsdata.errors import (
    CaptionerUnavailable,
    ObjectMissing,
    StoreDenied,
    StoreError,
    StoreFull,
    WsdataError,
)

ORDER_FORMAT = 1
PIPES = "DAGSTER_PIPES_CONTEXT"
METRICS_PORT, POOL = "WSDATA_METRICS_PORT", "WSDATA_POOL"
EXIT_TRY_AGAIN = 75  # sysexits' EX_TEMPFAIL: nothing speaks against the order itself
EXIT_TERMINATED = 128 + signal.SIGTERM


def run_stage(
    stage: str, step: str, order: str, *, store: str = "", report_key: str = ""
) -> dict[str, Any]:
    """Run an order ``{"format_version": 1, "store": address, "order": {...}}``.

    With ``"part": {"index": i, "of": n}`` beside them only that part of its units is worked, and
    with ``"follows_parts": true`` all parts have been.

    Args:
        stage: Its stage.
        step: Its step.
        order: Path of the order's file, or with `store` the key of its object.
        store: Address of the store that holds the order.
        report_key: Where in that store the report is put; empty for nowhere.

    Returns:
        The report, as JSON.

    Raises:
        WsdataError: It is no order of that step, or the step fails.
    """
    from wsdata.observability.worker_metrics import serving
    from wsdata.orders import execute
    from wsdata.records import Order
    from wsdata.steps import find_step
    from wsdata.store import open_store
    from wsdata.units import Part

    body = json.loads(
        open_store(store).get(order) if store else Path(order).read_text(encoding="utf-8")
    )
    if body.get("format_version") != ORDER_FORMAT:
        raise WsdataError(f"{order}: order file format {body.get('format_version')!r}, expected 1")
    wanted = Order.from_json(body["order"])
    if (wanted.stage, wanted.step) != (stage, step):
        raise WsdataError(f"{order} orders {wanted.stage}/{wanted.step}, not {stage}/{step}")
    port, pool = os.environ.get(METRICS_PORT), os.environ.get(POOL, "")
    with _pipes() as pipes, serving(stage, step, port, pool) as watch:
        kept = watch.metered(open_store(body["store"]))
        report = execute(
            wanted,
            find_step(stage, step).function,
            kept,
            watch,
            part=Part(**body["part"]) if body.get("part") else None,
            asks_blobs=not body.get("follows_parts", False),
        ).to_json()
        if report_key:
            open_store(store).put(report_key, json.dumps(report).encode())
        elif pipes is not None:
            pipes.report_custom_message({"wsdata_report": report})
    return report


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
        logging.getLogger("botocore").setLevel(logging.WARNING)  # tells where it found a key
        for handler in pipes.log.handlers:
            root.addHandler(handler)
        yield pipes


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent goes (Linux)."""
    import ctypes

    pr_set_pdeathsig = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def end_on_terminate() -> None:
    """End on SIGTERM, which the first process of a container is otherwise deaf to."""

    def end(_number: int, _frame: Any) -> None:
        raise SystemExit(EXIT_TERMINATED)

    signal.signal(signal.SIGTERM, end)


def is_worth_another_try(error: BaseException) -> bool:
    """Whether what failed is the machinery around a step, and not its order or its input."""
    return isinstance(error, (StoreError, CaptionerUnavailable)) and not isinstance(
        error, (ObjectMissing, StoreDenied, StoreFull)
    )


def stage(args):  # noqa: ANN001, ANN201
    """``stage``."""
    from wsdata.cli.main import Answer

    if args.report and not args.store:
        raise ValueError("--report names a key of --store, which is not given")
    if args.store:
        end_on_terminate()
    else:
        die_with_parent()
    try:
        report = run_stage(
            args.stage, args.step, args.order, store=args.store, report_key=args.report
        )
    except WsdataError as error:
        if not is_worth_another_try(error):
            raise
        print(f"wsdata: {error}", file=sys.stderr)
        return Answer({"error": str(error)}, [], EXIT_TRY_AGAIN)
    is_told = bool(args.report) or PIPES in os.environ  # put, or gone back as a message
    return Answer(report, [] if is_told else [json.dumps(report)])
