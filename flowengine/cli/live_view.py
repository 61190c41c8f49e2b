"""Show a run as it moves."""

from __future__ import annotations

import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

from flowengine.cli.tree import look_of, run_tree, wait_of
from flowengine.engine import Run, RunInfo
from flowengine.engine.presentation import duration
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.store.database import system_clock

_REFRESH = 0.1


def watch(run: Run[object], console: Console, *, stop_at_alarm: bool = False) -> RunInfo:
    """Follow a run to its end: a live tree on a terminal, a line per ended step elsewhere.

    An alarm says that the run waits for something this process does not have.
    """
    follow = _draw if console.is_terminal else _tell
    return follow(run, console, stop_at_alarm)


def _draw(run: Run[object], console: Console, stop_at_alarm: bool) -> RunInfo:
    with Live(console=console, refresh_per_second=1 / _REFRESH, vertical_overflow="crop") as live:
        while True:
            began = time.monotonic()
            info = run.info()
            live.update(run_tree(info, run.steps(), system_clock()))
            if info.is_final or (info.alarm and stop_at_alarm):
                return info
            _pause(began)


def _tell(run: Run[object], console: Console, stop_at_alarm: bool) -> RunInfo:
    told = {step.id for step in run.steps() if step.state in StepState.FINAL}
    alarm: str | None = None
    open_circuits: set[str] = set()
    while True:
        began = time.monotonic()
        info = run.info()
        steps = run.steps()
        # Of steps that ended together the inner ones first: the outer ended because they did.
        for step in sorted(steps, key=lambda step: (step.updated, -len(step.path))):
            if step.state not in StepState.FINAL or step.id in told:
                continue
            told.add(step.id)
            if step.object_type in ObjectType.BLOCKS:
                continue
            sign, colour, word = look_of(step, system_clock())
            at = duration(step.updated - info.created)
            line = Text.assemble(
                (f"{at:>9} ", "dim"), (f"{sign} ", colour), step.path, (f"  {word}", colour)
            )
            if step.error and step.error["path"] == step.path:
                line.append(f"  {step.error['type']}: {step.error['message']}", style="red")
            console.print(line, soft_wrap=True)
        now = system_clock()
        parked = {step.circuit: step for step in steps if (step.parked_until or 0) > now}
        for circuit in sorted(parked.keys() - open_circuits):
            line = Text(f"          ! {wait_of(parked[circuit])}", style="yellow")
            console.print(line, soft_wrap=True)
        open_circuits = set(parked)
        if info.alarm and info.alarm != alarm and not info.is_final:
            alarm = info.alarm
            console.print(Text(f"          ! {alarm}", style="yellow"), soft_wrap=True)
        if info.is_final or (info.alarm and stop_at_alarm):
            return info
        _pause(began)


def _pause(began: float) -> None:
    """Look at most a tenth of the time: a run of many steps takes a while to read."""
    time.sleep(max(_REFRESH, 9 * (time.monotonic() - began)))
