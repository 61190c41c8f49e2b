"""A run on a terminal: the tree of its steps, and its progress until it ends."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text
from rich.tree import Tree

from flowengine.engine import Run, RunInfo, StepInfo
from flowengine.engine.results import StepStatus, breaker_wait, duration, step_status
from flowengine.evaluator.states import ObjectType, RunState, StepState
from flowengine.store.database import system_clock

_REFRESH = 0.1  #: seconds
_COLOURS = {
    StepStatus.COMPLETE: "green",
    StepStatus.FAILED: "red",
    StepStatus.SKIPPED: "yellow",
    StepStatus.CREATED: "dim",
    StepStatus.WAITING: "cyan",
    StepStatus.PARKED: "yellow",
    StepStatus.RUNNING: "bold cyan",
    StepStatus.CHILD_RUN: "cyan",
    StepStatus.IN_PROGRESS: "cyan",
}
RUN_COLOURS = {RunState.COMPLETED: "green", RunState.FAILED: "red", RunState.RUNNING: "cyan"}

#: Items shown of a wide foreach; the others are counted.
_MAX_ITEMS = 12
_MAX_FAILED_ITEMS = 50


def status_of(step: StepInfo, now: int) -> tuple[str, str, str]:
    """Return symbol, colour and label of a step's status."""
    status = step_status(step.state, step.task_state, is_parked=(step.parked_until or 0) > now)
    return status.symbol, _COLOURS[status], status.value


def wait_of(step: StepInfo) -> str:
    """Return the breaker of a parked step and its due time in local time."""
    until = datetime.fromtimestamp((step.parked_until or 0) / 1000)
    return breaker_wait(step.circuit, f"{until:%H:%M:%S}")


def run_tree(run: RunInfo, steps: Sequence[StepInfo], now: int) -> Group:
    """Return the tree of a run with all its steps."""
    children: defaultdict[str | None, list[StepInfo]] = defaultdict(list)
    for step in steps:
        children[step.parent].append(step)
    for siblings in children.values():
        siblings.sort(key=lambda step: step.index)
    head = Text.assemble(
        ("run ", "dim"),
        (run.id, "bold"),
        "  ",
        (run.state, f"bold {RUN_COLOURS.get(run.state, 'white')}"),
        (f"  {duration((run.finished or now) - run.created)}", "dim"),
    )
    if run.parent:
        head.append(f"  started by run {run.parent[:8]}", style="dim")
    parts: list[Text | Tree] = [head]
    fans = {step.key for step in steps if step.object_type == ObjectType.FAN}
    for root in children[None]:
        tree = Tree(_line(root, root.path, now), guide_style="dim")
        _add_children(tree, root, children, fans, now)
        parts.append(tree)
    if run.alarm and not run.is_final:
        parts.append(Text(f"! {run.alarm}", style="bold yellow"))
    return Group(*parts)


def _add_children(
    tree: Tree,
    step: StepInfo,
    children: defaultdict[str | None, list[StepInfo]],
    fans: Collection[str],
    now: int,
) -> None:
    """Add the children of a step. Blocks are not shown, only their steps and items."""
    items = failed = 0
    hidden: Counter[str] = Counter()
    for child in _visible_children(step, children):
        if child.parent in fans:
            items += 1
            is_failed = child.state in (StepState.ERROR, StepState.SKIPPED)
            failed += is_failed
            if items > _MAX_ITEMS and not (is_failed and failed <= _MAX_FAILED_ITEMS):
                hidden[status_of(child, now)[2]] += 1
                continue
        name = child.path[len(step.path) :].lstrip(".")
        _add_children(tree.add(_line(child, name, now)), child, children, fans, now)
    if hidden:
        counts = ", ".join(f"{count:,} {label}" for label, count in hidden.most_common())
        tree.add(Text(f"… {sum(hidden.values()):,} more items: {counts}", style="dim"))


def _visible_children(
    step: StepInfo, children: defaultdict[str | None, list[StepInfo]]
) -> list[StepInfo]:
    visible = []
    for child in children[step.key]:
        if child.object_type in ObjectType.FRAMES:
            visible += _visible_children(child, children)
        else:
            visible.append(child)
    return visible


def _line(step: StepInfo, name: str, now: int) -> Text:
    sign, colour, label = status_of(step, now)
    if label == StepStatus.PARKED:
        label = wait_of(step)
    is_final = step.state in StepState.FINAL
    took = duration((step.updated if is_final else now) - step.created)
    line = Text.assemble((f"{sign} ", colour), (name, "bold" if not step.parent else ""))
    if step.facet and step.facet.rpartition(".")[2] != name.rpartition(".")[2]:
        line.append(f"  {step.facet}", style="dim")
    if step.state != StepState.COMPLETE:
        line.append(f"  {label}", style=colour)
    if step.state not in (StepState.CREATED, StepState.SKIPPED):
        line.append(f"  {took}", style="dim")
    if step.child_run:
        line.append(f"  run {step.child_run[:8]}", style="dim")
    if step.tries > 1 or step.losses:
        line.append(f"  try {step.tries}", style="yellow")
        if step.losses:
            line.append(f", {step.losses} lost", style="yellow")
    if step.error and step.state == StepState.ERROR and step.error["path"] == step.path:
        line.append(f"  {step.error['type']}: {step.error['message']}", style="red")
    if step.error and step.state == StepState.SKIPPED:
        line.append(f"  because of {step.error['path']}", style="dim")
    return line


def watch(run: Run[object], console: Console, *, stop_at_alarm: bool = False) -> RunInfo:
    """Show a run until it ends: a live tree on a terminal, else a line per ended step.

    `stop_at_alarm` stops when the run waits for code that this process does not have.
    """
    show = _show_live if console.is_terminal else _print_steps
    return show(run, console, stop_at_alarm)


def _show_live(run: Run[object], console: Console, stop_at_alarm: bool) -> RunInfo:
    with Live(console=console, refresh_per_second=1 / _REFRESH, vertical_overflow="crop") as live:
        while True:
            began = time.monotonic()
            info = run.info()
            live.update(run_tree(info, run.steps(), system_clock()))
            if info.is_final or (info.alarm and stop_at_alarm):
                return info
            _pause(began)


def _print_steps(run: Run[object], console: Console, stop_at_alarm: bool) -> RunInfo:
    printed = {step.id for step in run.steps() if step.state in StepState.FINAL}
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
            if step.object_type in ObjectType.BLOCKS:
                continue
            sign, colour, label = status_of(step, system_clock())
            at = duration(step.updated - info.created)
            line = Text.assemble(
                (f"{at:>9} ", "dim"), (f"{sign} ", colour), step.path, (f"  {label}", colour)
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
    """Poll at most a tenth of the time: a run of many steps takes long to read."""
    time.sleep(max(_REFRESH, 9 * (time.monotonic() - began)))
