"""Several workers for one order: parts of its units at once, then one worker for the whole.

A step that says what its units are (`wsdata.orders.Step.units_of`) keeps each finished one in the
store. So the workers of its parts share nothing but that memory, and the one that follows finds
it full and only writes the rows: they are those that a single worker would have written.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace

from resources.workers import WorkerJob
from wsdata.orders import Step
from wsdata.records import Order, Report
from wsdata.units import Part

Work = Callable[[WorkerJob], Report]


def num_parts(step: Step, order: Order, *, units_per_worker: int, max_workers: int) -> int:
    """Tell how many workers an order is worth: 1 where its step cannot be parted, or it is small.

    Args:
        step: The step.
        order: One order of it.
        units_per_worker: What one worker is given, about.
        max_workers: At most so many.
    """
    if not step.units_of:
        return 1
    num_units = sum(ref.num_rows for ref in order.inputs.get(step.units_of, []))
    return max(1, min(max_workers, -(-num_units // units_per_worker)))


def work_in_parts(job: WorkerJob, parts: int, work: Work, stop: threading.Event) -> Report:
    """Work an order in parts at once, then as a whole.

    A part that fails is told once all others have ended: what they finish is kept.

    Args:
        job: The whole.
        parts: How many, at least 2.
        work: Works one job to its end, and raises what its worker's end calls for.
        stop: Set here when this thread is interrupted: `work` then leaves its worker.

    Returns:
        The report of the whole.
    """
    with ThreadPoolExecutor(parts, thread_name_prefix="part") as executor:
        jobs = [replace(job, part=Part(index=index, of=parts)) for index in range(parts)]
        ends: list[Future[Report]] = [executor.submit(work, each) for each in jobs]
        try:
            wait(ends)
        except BaseException:
            stop.set()
            raise
    for end in ends:
        end.result()
    return work(replace(job, follows_parts=True))
