"""A run on a terminal: the tree of its steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from rich.console import Group
from rich.text import Text
from rich.tree import Tree

from flowengine.cli.terminal import Part, line
from flowengine.engine import RunInfo, StepInfo
from flowengine.engine.call_lines import (
    HiddenCalls,
    activation_count,
    awaited_label,
    is_call,
    is_named_by,
    shown_calls,
)
from flowengine.engine.presentation import (
    clock,
    elapsed,
    progress_text,
    round_label,
    round_time,
    status_and_label,
    try_count,
    waits,
)
from flowengine.engine.results import StepStatus, duration
from flowengine.engine.rounds import Round, Rounds
from flowengine.engine.status_words import Status
from flowengine.engine.waits_for import words
from flowengine.evaluator.states import ObjectType, RunState, StepState, TaskState
from flowengine.shown_paths import shown_path

_COLOURS = {
    StepStatus.COMPLETE: "green",
    StepStatus.FAILED: "red",
    StepStatus.SKIPPED: "yellow",
    StepStatus.CANCELLED: "dim",
    StepStatus.HELD: "yellow",
    StepStatus.CREATED: "dim",
    StepStatus.WAITING: "cyan",
    StepStatus.LIMITED: "yellow",
    StepStatus.RATED: "yellow",
    StepStatus.PARKED: "yellow",
    StepStatus.DIVERGED: "yellow",
    StepStatus.RETRYING: "yellow",
    StepStatus.RUNNING: "bold cyan",
    StepStatus.CHILD_RUN: "cyan",
    StepStatus.SLEEPING: "cyan",
    StepStatus.ASKING: "bold yellow",
    StepStatus.LIMITED: "yellow",
    StepStatus.HELD: "yellow",
    StepStatus.SUSPENDED: "cyan",
    StepStatus.IN_PROGRESS: "cyan",
}
RUN_COLOURS = {
    RunState.COMPLETED: "green",
    RunState.FAILED: "red",
    RunState.CANCELLED: "dim",
    RunState.RUNNING: "cyan",
    RunState.HELD: "yellow",
    RunState.CANCELLING: "yellow",
}

#: Items shown of a wide foreach; the others are counted.
_MAX_ITEMS = 12
_MAX_FAILED_ITEMS = 50
#: Rounds shown of a long loop, and those that failed; the others are counted.
_FIRST_ROUNDS, _LAST_ROUNDS = 4, 8
#: Calls shown of a durable function, and those that are open or failed; the others are counted.
_FIRST_CALLS, _LAST_CALLS, _MAX_OTHER_CALLS = 8, 16, 50
_MAX_TRIES = 5  #: earlier tries of a step; `--json` has all
#: Levels that are indented; deeper steps are below those of this level, with their depth.
_MAX_INDENT = 12
_MIN_TEXT = 16  #: columns
MAX_PART = 2_000  #: characters of a name or an error


def status_of(step: StepInfo, now: int) -> tuple[str, str, str]:
    """Return symbol, colour and label of a step's status."""
    status, _ = status_and_label(step, now)
    return status.symbol, _COLOURS[status], status.value


def shown_state(run: RunInfo) -> str:
    """Return the state of a run; a failure by a loss is told."""
    return run.status if run.status is Status.CRASHED else run.state


def run_tree(run: RunInfo, steps: Sequence[StepInfo], now: int, width: int = 120) -> Group:
    """Return the tree of a run with all its steps, for a terminal of that many columns."""
    # rich drops the lines whose guides alone, 4 columns a level, fill the terminal.
    indent = max(1, min(_MAX_INDENT, (width - _MIN_TEXT) // 4))
    children: defaultdict[str | None, list[StepInfo]] = defaultdict(list)
    for step in steps:
        children[step.parent].append(step)
    for siblings in children.values():
        siblings.sort(key=lambda step: step.index)
    started_by = f"  started by run {run.parent[:8]}" if run.parent else ""
    head = line(
        ("run ", "dim"),
        (run.id, "bold"),
        "  ",
        (shown_state(run), f"bold {RUN_COLOURS.get(run.state, 'white')}"),
        (f"  {duration((run.finished or now) - run.created)}", "dim"),
        (started_by, "dim"),
        (f"  tenant {run.tenant}" if run.tenant else "", "dim"),
    )
    parts: list[Text | Tree] = [head]
    fans = {step.key for step in steps if step.object_type == ObjectType.FAN}
    rounds = Rounds(children, lambda step: step.facet)
    for root in children[None]:
        tree = Tree(_line(root, root.path, now), guide_style="dim")
        _add_steps(tree, root, children, rounds, fans, now, indent)
        parts.append(tree)
    if run.state == RunState.QUEUED and run.waits_for is not None:
        parts.append(line((words(run.waits_for, clock(now)), "yellow")))
    if run.alarm and not run.is_final:
        parts.append(line((f"! {run.alarm}", "bold yellow")))
    return Group(*parts)


def _add_steps(
    tree: Tree,
    root: StepInfo,
    children: defaultdict[str | None, list[StepInfo]],
    rounds: Rounds[StepInfo],
    fans: Collection[str],
    now: int,
    indent: int,
) -> None:
    """Add the steps below a step. Iterative: a recursive workflow may exceed the stack.

    Blocks are not shown, only their steps and items. The calls of a loop by recursion are listed
    as rounds.
    """
    pending: list[tuple[int, Tree, StepInfo, StepInfo | Round[StepInfo] | str]] = []

    def add_below(step: StepInfo, node: Tree, depth: int, *, is_round: bool = False) -> None:
        shown: list[StepInfo | Round[StepInfo] | str] = []
        if not is_round:
            shown += _shown_rounds(step, rounds, now)
        if not shown:
            shown += _shown_children(step, children, rounds, fans, now)
        pending.extend((depth, node, step, child) for child in reversed(shown))

    add_below(root, tree, 1)
    while pending:
        depth, node, parent, child = pending.pop()
        if isinstance(child, str):
            node.add(line((child, "dim")))
            continue
        if isinstance(child, Round):
            node = node.add(_round_line(child, now))
            add_below(child.step, node, depth + 1, is_round=True)
            continue
        name = child.path[len(parent.path) :].lstrip(".")
        awaited = _awaited(child, children)
        if depth <= indent:
            node = node.add(_line(child, name, now, awaited))
        else:
            node.add(_line(child, f"({depth} levels deep) {name}", now, awaited))
        for text in _earlier_tries(child):
            node.add(line((text, "dim"), limit=MAX_PART))
        add_below(child, node, depth + 1)


def _shown_rounds(
    step: StepInfo, rounds: Rounds[StepInfo], now: int
) -> Iterator[Round[StepInfo] | str]:
    """Yield the rounds of the loop that begins with a step, and how many are not shown."""
    for shown in rounds.of(step, _FIRST_ROUNDS, _LAST_ROUNDS):
        if isinstance(shown, Round):
            yield shown
        else:
            yield _hidden((_round_status(one, now)[2] for one in shown), "rounds")


def _round_status(one: Round[StepInfo], now: int) -> tuple[str, str, str]:
    sign, colour, label = status_of(one.step, now)
    return sign, colour, round_label(one.number, one.failed_in) or label


def _round_line(one: Round[StepInfo], now: int) -> Text:
    sign, colour, label = _round_status(one, now)
    parts: list[Part] = [(f"{sign} ", colour), one.name]
    if one.step.state != StepState.COMPLETE:
        parts.append((f"  {label}", colour))
    if took := round_time(one.step, one.own_time, now):
        parts.append((f"  {took}", "dim"))
    if one.number > 1:  # the line of the outermost call has the error of the first
        parts.append((_own_error(one.step), "red"))
    return line(*parts, limit=MAX_PART)


def _own_error(step: StepInfo) -> str:
    """Return the error of a step that failed itself; else nothing."""
    if not step.error or step.state != StepState.ERROR or step.error["path"] != step.path:
        return ""
    return f"  {step.error['type']}: {step.error['message']}"


def _hidden(labels: Iterable[str], what: str) -> str:
    """Return how many items or rounds are not shown, by the label of their state."""
    counts = Counter(labels)
    states = ", ".join(f"{count:,} {label}" for label, count in counts.most_common())
    return f"… {counts.total():,} more {what}: {states}"


def _earlier_tries(step: StepInfo) -> list[str]:
    """Return a line for each try before the last one."""
    failed = step.failed_tries[-_MAX_TRIES:]
    hidden = len(step.failed_tries) - len(failed)
    told = [f"try {one.number} {one.error_text}" for one in failed]
    return [f"… {hidden} earlier tries", *told] if hidden else told


def _shown_children(
    step: StepInfo,
    children: defaultdict[str | None, list[StepInfo]],
    rounds: Rounds[StepInfo],
    fans: Collection[str],
    now: int,
) -> Iterator[StepInfo | str]:
    """Yield the steps and items directly below a step, and how many items are not shown."""
    below = children[step.key]
    # A step that calls may also have a body, or blocks that catch its errors.
    yield from _shown_calls([child for child in below if is_call(child)], now)
    items = failed = 0
    hidden: list[str] = []
    pending = [child for child in reversed(below) if not is_call(child)]
    while pending:
        child = pending.pop()
        if rounds.is_frame(child):
            pending += reversed(children[child.key])
            continue
        if rounds.is_elsewhere(child):
            continue
        if child.parent in fans:
            items += 1
            is_failed = child.state in StepState.UNSUCCESSFUL
            failed += is_failed
            if items > _MAX_ITEMS and not (is_failed and failed <= _MAX_FAILED_ITEMS):
                hidden.append(status_of(child, now)[2])
                continue
        yield child
    if hidden:
        yield _hidden(hidden, "items")


def _shown_calls(calls: Sequence[StepInfo], now: int) -> Iterator[StepInfo | str]:
    """Yield the calls of a durable function, and how many are not shown."""
    for shown in shown_calls(calls, first=_FIRST_CALLS, last=_LAST_CALLS, most=_MAX_OTHER_CALLS):
        if isinstance(shown, HiddenCalls):
            yield _hidden((status_of(call, now)[2] for call in shown.calls), "calls")
        else:
            yield shown


def _awaited(step: StepInfo, children: defaultdict[str | None, list[StepInfo]]) -> str:
    """Return for which calls a suspended function waits."""
    if step.state != StepState.SUSPENDED:
        return ""
    open_calls = [call for call in children[step.key] if call.state not in StepState.FINAL]
    return awaited_label([call.path[len(step.path) + 1 :] for call in open_calls])


def _line(step: StepInfo, name: str, now: int, awaited: str = "") -> Text:
    status, label = status_and_label(step, now)
    label = awaited or label
    sign, colour = status.symbol, _COLOURS[status]
    took, queued = elapsed(step, now)
    parts: list[Part] = [(f"{sign} ", colour), (name, "bold" if not step.parent else "")]
    if step.facet and not is_named_by(step.facet, name):
        parts.append((f"  {step.facet}", "dim"))
    if step.state != StepState.COMPLETE:
        parts.append((f"  {label}", colour))
    times = [text for text in (took, f"queued {queued}" if queued else "", *waits(step)) if text]
    if step.task_state == TaskState.RUNNING and step.progress is not None:
        parts.append((f"  {progress_text(step.progress)}", "cyan"))
    if times:
        parts.append((f"  {', '.join(times)}", "dim"))
    if step.cached_from:
        parts.append((f"  cached, of run {step.cached_from.run[:8]}", "dim"))
    if step.child_run:
        parts.append((f"  run {step.child_run[:8]}", "dim"))
    is_told = label.endswith(")")  # the label of a retry has the number of its try
    if (step.tries > 1 or step.losses) and not is_told:
        activations = activation_count(step.facet, step.tries)
        count = activations or try_count(step.tries, step.allowed_tries)
        parts.append((f"  {count}", "dim" if activations else "yellow"))
        if step.losses:
            parts.append((f", {step.losses} lost", "yellow"))
    parts.append((_own_error(step), "red"))
    if step.error and step.state == StepState.SKIPPED:
        parts.append((f"  because of {shown_path(step.error['path'])}", "dim"))
    return line(*parts, limit=MAX_PART)
