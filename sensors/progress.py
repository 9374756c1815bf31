"""What a terminal shows while the main job works: one line per step, and where it is."""

import re
import sys
import time
from typing import TextIO

import dagster as dg
from dagster import DagsterEventType, EventLogEntry

QUIET_S = 10.0  # without a terminal, at most one line of progress in this time
_COUNTED = re.compile(r"^(\d+)/(\d+) (.*)", re.DOTALL)


class Progress:
    """Prints a run's events as they come. All goes to standard error."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._started: dict[str, float] = {}
        self._rows: dict[str, int] = {}
        self._unchanged: set[str] = set()
        self._last_s = 0.0
        self._partition = ""

    def say(self, text: str) -> None:
        """Print one line."""
        clear = "\r\x1b[K" if self._is_terminal else ""
        self._stream.write(f"{clear}{text}\n")
        self._stream.flush()

    def start_run(self, job: str, partition: str, num_steps: int) -> None:
        """Say which run starts."""
        self._partition = partition
        self._started, self._rows, self._unchanged = {}, {}, set()
        self.say(f"{job} [{partition}]: {num_steps} step{'s' if num_steps != 1 else ''}")

    def see(self, entry: EventLogEntry) -> None:
        """Take one event of the run that is being worked."""
        event = entry.dagster_event
        step = (entry.step_key or "").replace("__", "/")
        if event is None:
            self._counted(step, entry.user_message)
        elif event.event_type is DagsterEventType.STEP_START:
            self._started[step] = time.monotonic()
        elif event.event_type is DagsterEventType.ASSET_MATERIALIZATION:
            self._materialized(step, event)
        elif event.event_type is DagsterEventType.STEP_SUCCESS:
            self._succeeded(step)
        elif event.event_type is DagsterEventType.STEP_FAILURE:
            self.say(f"  {step}  FAILED after {self._seconds(step):.1f} s")
        elif event.event_type is DagsterEventType.ASSET_CHECK_EVALUATION:
            self._checked(event)

    def _seconds(self, step: str) -> float:
        return time.monotonic() - self._started.get(step, time.monotonic())

    def _materialized(self, step: str, event: dg.DagsterEvent) -> None:
        metadata = event.step_materialization_data.materialization.metadata
        rows = metadata.get("dagster/row_count")
        self._rows[step] = self._rows.get(step, 0) + (int(str(rows.value)) if rows else 0)
        if (unchanged := metadata.get("unchanged")) is not None and unchanged.value:
            self._unchanged.add(step)

    def _succeeded(self, step: str) -> None:
        if step not in self._rows:
            return  # a check
        done = ", done before" if step in self._unchanged else ""
        self.say(f"  {step}  {self._seconds(step):.1f} s, {self._rows[step]:,} rows{done}")

    def _checked(self, event: dg.DagsterEvent) -> None:
        evaluation = event.asset_check_evaluation_data
        if not evaluation.passed:
            name = f"{evaluation.asset_key.to_user_string()}: {evaluation.check_name}"
            level = "WARNING" if evaluation.severity is dg.AssetCheckSeverity.WARN else "FAILED"
            said = f": {evaluation.description}" if evaluation.description else ""
            self.say(f"  {level}  {name}{said}")

    def _counted(self, step: str, message: str) -> None:
        match = _COUNTED.match(message)
        if match is None:
            return
        now_s = time.monotonic()
        if now_s - self._last_s < (0.1 if self._is_terminal else QUIET_S):
            return
        self._last_s = now_s
        note = match[3].splitlines()[0][:60] if match[3] else ""
        line = f"  {step}  {match[1]}/{match[2]} {note}"
        if self._is_terminal:
            self._stream.write(f"\r\x1b[K{line[:110]}")
            self._stream.flush()
        else:
            self.say(line)
