"""A run as a tree that a person can read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime

from rich.console import Group
from rich.text import Text
from rich.tree import Tree

from flowengine.engine import RunInfo, StepInfo
from flowengine.engine.presentation import SIGNS, Look, circuit_wait, duration, look
from flowengine.evaluator.states import ObjectType, RunState, StepState

_COLOURS = {
    Look.COMPLETE: "green",
    Look.FAILED: "red",
    Look.SKIPPED: "yellow",
    Look.CREATED: "dim",
    Look.WAITING: "cyan",
    Look.PARKED: "yellow",
    Look.RUNNING: "bold cyan",
    Look.HANDED_OVER: "cyan",
    Look.UNDER_WAY: "cyan",
}
_RUN_COLOURS = {RunState.COMPLETED: "green", RunState.FAILED: "red", RunState.RUNNING: "cyan"}

#: Of a wide foreach so many items are drawn; the others are counted.
_ITEMS_DRAWN = 12
_BAD_ITEMS_DRAWN = 50  # what went wrong is what one looks for


def look_of(step: StepInfo, now: int) -> tuple[str, str, str]:
    """Return sign, colour and word for a step's state."""
    found = look(step.state, step.task_state, is_parked=(step.parked_until or 0) > now)
    return SIGNS[found], _COLOURS[found], found.value


def wait_of(step: StepInfo) -> str:
    """Say what a parked step waits for, and until when on the reader's own clock."""
    until = datetime.fromtimestamp((step.parked_until or 0) / 1000)
    return circuit_wait(step.circuit, f"{until:%H:%M:%S}")


def run_tree(run: RunInfo, steps: Sequence[StepInfo], now: int) -> Group:
    """Draw a run with all its steps."""
    children: defaultdict[str | None, list[StepInfo]] = defaultdict(list)
    for step in steps:
        children[step.parent].append(step)
    for siblings in children.values():
        siblings.sort(key=lambda step: step.index)
    head = Text.assemble(
        ("run ", "dim"),
        (run.id, "bold"),
        "  ",
        (run.state, f"bold {_RUN_COLOURS.get(run.state, 'white')}"),
        (f"  {duration((run.finished or now) - run.created)}", "dim"),
    )
    if run.parent:
        head.append(f"  started by run {run.parent[:8]}", style="dim")
    parts: list[Text | Tree] = [head]
    fans = {step.key for step in steps if step.object_type == ObjectType.FAN}
    for root in children[None]:
        tree = Tree(_line(root, root.path, now), guide_style="dim")
        _grow(tree, root, children, fans, now)
        parts.append(tree)
    if run.alarm and not run.is_final:
        parts.append(Text(f"! {run.alarm}", style="bold yellow"))
    return Group(*parts)


def _grow(
    tree: Tree,
    step: StepInfo,
    children: defaultdict[str | None, list[StepInfo]],
    fans: Collection[str],
    now: int,
) -> None:
    """Add what stands below a step. Blocks are not drawn: their steps and items are."""
    items = bad = 0
    hidden: Counter[str] = Counter()
    for child in _below(step, children):
        if child.parent in fans:
            items += 1
            is_bad = child.state in (StepState.ERROR, StepState.SKIPPED)
            bad += is_bad
            if items > _ITEMS_DRAWN and not (is_bad and bad <= _BAD_ITEMS_DRAWN):
                hidden[look_of(child, now)[2]] += 1
                continue
        name = child.path[len(step.path) :].lstrip(".")
        _grow(tree.add(_line(child, name, now)), child, children, fans, now)
    if hidden:
        counted = ", ".join(f"{count:,} {word}" for word, count in hidden.most_common())
        tree.add(Text(f"… {sum(hidden.values()):,} more items: {counted}", style="dim"))


def _below(step: StepInfo, children: defaultdict[str | None, list[StepInfo]]) -> list[StepInfo]:
    found = []
    for child in children[step.key]:
        if child.object_type in ObjectType.FRAMES:
            found += _below(child, children)
        else:
            found.append(child)
    return found


def _line(step: StepInfo, name: str, now: int) -> Text:
    sign, colour, word = look_of(step, now)
    if word == Look.PARKED:
        word = wait_of(step)
    is_final = step.state in StepState.FINAL
    took = duration((step.updated if is_final else now) - step.created)
    line = Text.assemble((f"{sign} ", colour), (name, "bold" if not step.parent else ""))
    if step.facet and step.facet.rpartition(".")[2] != name.rpartition(".")[2]:
        line.append(f"  {step.facet}", style="dim")
    if step.state != StepState.COMPLETE:
        line.append(f"  {word}", style=colour)
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
