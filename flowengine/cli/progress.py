"""The progress of a run on a terminal, until it ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.segment import Segment

from flowengine.cli.run_view import MAX_PART, run_tree, status_of
from flowengine.cli.terminal import line
from flowengine.engine import Run, RunInfo
from flowengine.engine.presentation import status_and_label
from flowengine.engine.results import duration
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.shown_paths import shown_path
from flowengine.store.database import system_clock

_REFRESH = 0.1  #: seconds


class _Bottom:
    """The first line and the last ones of a tree that is higher than the terminal.

    The steps that run now are most often at its end.
    """

    def __init__(self, tree: Group) -> None:
        self._tree = tree

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._tree, options.update(height=None), pad=False)
        room = console.height - 3
        if len(lines) > room + 2:
            hidden = line((f"… {len(lines) - room - 1:,} lines above", "dim"))
            notice = console.render_lines(hidden, options.update(height=None), pad=False)
            lines = [lines[0], *notice, *lines[-room:]]
        for each in lines:
            yield from each
            yield Segment.line()


#: Log lines about things that are part of the progress.
_PRINTED = frozenset({"try_failed", "run_failed", "run_alarm"})


@contextmanager
def printed_failures() -> Iterator[None]:
    """Leave failures and alarms of runs to the progress that is printed.

    Without logging configured, Python would write their log lines between those of the progress.
    """
    log = logging.getLogger("flowengine")

    def is_logged(record: logging.LogRecord) -> bool:
        return log.hasHandlers() or getattr(record, "action", "") not in _PRINTED

    log.addFilter(is_logged)
    try:
        yield
    finally:
        log.removeFilter(is_logged)


def watch(
    run: Run[object], console: Console, *, since: int = 0, stop_at_alarm: bool = False
) -> RunInfo:
    """Show a run until it ends: a live tree on a terminal, else a line for each ended step.

    No line is printed for steps that ended before `since`, in milliseconds, or with the start.
    `stop_at_alarm` stops when the run waits for code that this process does not have.
    """
    if console.is_terminal:
        return _show_live(run, console, stop_at_alarm)
    return _print_steps(run, console, since, stop_at_alarm)


def _show_live(run: Run[object], console: Console, stop_at_alarm: bool) -> RunInfo:
    with Live(console=console, refresh_per_second=1 / _REFRESH, vertical_overflow="crop") as live:
        while True:
            began = time.monotonic()
            info = run.info()
            tree = run_tree(info, run.steps(), system_clock(), console.width)
            live.update(tree if info.is_final else _Bottom(tree))
            if info.is_final or (info.alarm and stop_at_alarm):
                return info
            _pause(began)


def _print_steps(run: Run[object], console: Console, since: int, stop_at_alarm: bool) -> RunInfo:
    printed: set[str] = set()
    alarm: str | None = None
    open_circuits: set[str] = set()
    while True:
        began = time.monotonic()
        info = run.info()
        steps = run.steps()
        # If steps ended together, print the inner ones first: they caused the end of the outer.
        for step in sorted(steps, key=lambda step: (step.updated, -len(step.path))):
            if step.state not in StepState.FINAL or step.id in printed:
                continue
            printed.add(step.id)
            # A step that ended with the start had nothing to do.
            if step.object_type in ObjectType.BLOCKS or step.updated <= max(since, info.created):
                continue
            sign, colour, label = status_of(step, system_clock())
            at = duration(step.updated - info.created)
            error = ""
            if step.error and step.error["path"] == step.path:
                error = f"  {step.error['type']}: {step.error['message']}"
            ended = line(
                (f"{at:>9} ", "dim"),
                (f"{sign} ", colour),
                shown_path(step.path),
                (f"  {label}", colour),
                (error, "red"),
                limit=MAX_PART,
            )
            console.print(ended, soft_wrap=True)
        now = system_clock()
        parked = {step.circuit: step for step in steps if (step.parked_until or 0) > now}
        for circuit in sorted(parked.keys() - open_circuits):
            label = status_and_label(parked[circuit], now)[1]
            parking = line((f"          ! {label}", "yellow"))
            console.print(parking, soft_wrap=True)
        open_circuits = set(parked)
        if info.alarm and info.alarm != alarm and not info.is_final:
            alarm = info.alarm
            console.print(line((f"          ! {alarm}", "yellow")), soft_wrap=True)
        if info.is_final or (info.alarm and stop_at_alarm):
            return info
        _pause(began)


def _pause(began: float) -> None:
    """Poll at most a tenth of the time: a run of many steps takes long to read."""
    time.sleep(max(_REFRESH, 9 * (time.monotonic() - began)))
