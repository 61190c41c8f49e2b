"""The tree of a run is drawn however deep and wide it is."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest

from flowengine.cli.run_view import run_tree
from flowengine.cli.terminal import SafeConsole
from flowengine.engine import RunInfo, StepInfo
from flowengine.evaluator.states import ObjectType, RunState, StepState

RUN = RunInfo("ab" * 16, "t.flow", RunState.COMPLETED, {}, None, None, 0, 1, 1, 1, 0)


def step(path: str, parent: str | None, index: int = 0) -> StepInfo:
    kind = next(iter(ObjectType.STEPS - ObjectType.FRAMES))
    state = StepState.COMPLETE
    return StepInfo(path, path, kind, "", state, parent, path, index, {}, {}, None, 0, 1)


class Loop:
    """The steps of a run of the workflow `loop`, which calls itself in a `when`."""

    def __init__(self) -> None:
        self.steps: list[StepInfo] = []

    def add(self, parent: StepInfo | None, name: str, kind: str, **more: Any) -> StepInfo:
        path = (parent.path if parent else "") + name
        key, now = f"{kind} {path}", len(self.steps)
        more = {"facet": "", "state": StepState.COMPLETE, "address": "t.loop/0"} | more
        made = StepInfo(
            id=key,
            key=key,
            path=path,
            object_type=kind,
            index=now,
            parent=parent.key if parent else None,
            params={},
            returns={},
            error=None,
            created=now,
            updated=now + 1,
            **more,
        )
        self.steps.append(made)
        return made

    def rounds(self, count: int, last: str = StepState.COMPLETE, others: str = "") -> None:
        parent: StepInfo | None = None
        for number in range(1, count + 1):
            state = last if number == count else others or last
            kind = ObjectType.CALL if parent else ObjectType.WORKFLOW
            name = ".loop" if parent else "loop"
            call = self.add(parent, name, kind, facet="t.loop", state=state)
            body = self.add(call, "", ObjectType.BLOCK, state=state)
            self.add(body, ".work", ObjectType.CALL, facet="t.work", address="t.loop/0/work")
            when = self.add(body, ".when", ObjectType.CALL, facet="std.when", state=state)
            cases = self.add(when, "", ObjectType.WHEN, state=state)
            parent = self.add(cases, "[case-0]", ObjectType.CASE, state=state)
            self.add(cases, "[default]", ObjectType.CASE, state=StepState.SKIPPED)


def names(lines: list[str]) -> list[str]:
    """The lines without signs and times, indented by their level."""
    found = []
    for line in lines[1:]:
        guides, _, rest = line.partition("── ") if "── " in line else ("", "", line)
        level = (len(guides) + 4) // 4 if "── " in line else 0
        found.append("  " * level + rest.lstrip("✓✗↷… ").partition("  ")[0])
    return found


def drawn(steps: list[StepInfo], width: int) -> list[str]:
    console = SafeConsole()
    console.file, console.width = io.StringIO(), width
    console.print(run_tree(RUN, steps, 1, width))
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [20, 200])
def test_a_run_of_many_nested_rounds_is_drawn(width: int) -> None:
    paths = ["flow" + ".a" * depth for depth in range(1500)]
    steps = [step(path, path[:-2] if depth else None) for depth, path in enumerate(paths)]
    lines = drawn(steps, width)
    assert len(lines) >= 1501
    if width == 200:
        assert lines[1:3] == ["✓ flow  1 ms", "└── ✓ a  1 ms"]
        assert lines[-1].endswith("✓ (1499 levels deep) a  1 ms")
        assert max(map(len, lines)) < 100


def test_deep_steps_are_in_the_order_of_the_program() -> None:
    steps, path = [step("flow", None)], "flow"
    for _ in range(14):
        for index, name in enumerate("xyz"):
            steps.append(step(f"{path}.{name}", path, index))
        path = f"{path}.x"
    lines = [line.split("✓ ")[1].split("  ")[0] for line in drawn(steps, 200)[1:]]
    assert lines[1:15] == ["x"] * 12 + [f"({depth} levels deep) x" for depth in (13, 14)]
    assert lines[15:19] == [f"({depth} levels deep) {n}" for depth in (14, 13) for n in "yz"]
    assert lines[19:] == ["y", "z"] * 12


def test_a_loop_by_recursion_is_a_flat_list_of_rounds() -> None:
    loop = Loop()
    loop.rounds(3)
    shown = drawn(loop.steps, 100)
    assert names(shown) == [
        "loop",
        *["  round 1", "    work"],
        *["  round 2", "    work"],
        *["  round 3", "    work", "    when", "      [case-0]", "      [default]"],
    ]
    assert shown[2] == "├── ✓ round 1  7 ms", "until the next round begins"


@pytest.mark.parametrize("width", [30, 200])
@pytest.mark.parametrize("count", [30, 300, 1000])
def test_of_many_rounds_the_first_and_the_last_are_shown(count: int, width: int) -> None:
    loop = Loop()
    loop.rounds(count)
    found = [name.strip() for name in names(drawn(loop.steps, width)) if name.startswith("  ")]
    rounds = [name for name in found if name.startswith("round")]
    assert rounds == [f"round {n:,}" for n in [*range(1, 5), *range(count - 7, count + 1)]]
    if width == 200:
        assert f"{count - 12:,} more rounds: {count - 12:,} complete" in found


def test_rounds_that_fail_because_of_a_later_round_name_it() -> None:
    loop = Loop()
    loop.rounds(200, StepState.ERROR)
    lines = drawn(loop.steps, 100)
    assert lines[2].startswith("├── ✗ round 1  failed in round 200  7 ms")
    assert "├── … 188 more rounds: 188 failed in round 200" in lines
    assert any(line.startswith("└── ✗ round 200  failed  ") for line in lines)


def test_a_round_that_was_skipped_is_not_the_cause() -> None:
    loop = Loop()
    loop.rounds(3, StepState.SKIPPED, StepState.ERROR)
    shown = [line for line in drawn(loop.steps, 100) if " round " in line]
    assert [line[4:].partition("  ")[2].rpartition("  ")[0] for line in shown] == [
        *["failed in round 2", "failed", "skipped"]
    ]


def test_the_time_of_a_round_has_neither_the_rounds_inside_it_nor_its_wait_to_begin() -> None:
    loop = Loop()
    loop.rounds(2)
    first, second = [step for step in loop.steps if step.facet == "t.loop"]
    moved = {
        first.key: replace(first, updated=900),
        second.key: replace(second, created=0, updated=800),  # with all steps of its block
    }
    loop.steps = [moved.get(step.key, step) for step in loop.steps]
    shown = [line for line in drawn(loop.steps, 100) if " round " in line]
    assert [line.split()[-2:] for line in shown] == [["7", "ms"], ["792", "ms"]]


def test_a_round_that_fails_itself_has_its_error() -> None:
    loop = Loop()
    loop.rounds(3, StepState.ERROR)
    *_, (at, last) = ((n, s) for n, s in enumerate(loop.steps) if s.facet == "t.loop")
    error = {"type": "NestedTooDeep", "message": "it must end", "path": last.path}
    loop.steps = [*loop.steps[:at], replace(last, error=error)]
    assert drawn(loop.steps, 100)[-1] == "└── ✗ round 3  failed  1 ms  NestedTooDeep: it must end"


def test_a_round_that_failed_and_was_caught_is_shown_among_many() -> None:
    loop = Loop()
    loop.rounds(100)
    loop.steps = [
        replace(step, state=StepState.ERROR)
        if step.path.count(".loop") >= 49 and step.state == StepState.COMPLETE
        else step
        for step in loop.steps
    ]
    found = [name.strip() for name in names(drawn(loop.steps, 100))]
    assert "44 more rounds: 44 complete" not in found
    assert "88 more rounds: 45 complete, 43 failed in round 100" in found


def test_rounds_in_progress_are_listed_while_the_loop_runs() -> None:
    loop = Loop()
    loop.rounds(40, StepState.BLOCKS_CONTINUE)
    lines = drawn(loop.steps, 100)
    assert "├── … 28 more rounds: 28 in progress" in lines


def test_steps_in_the_branch_that_leads_to_the_next_round_are_steps_of_the_round() -> None:
    loop = Loop()
    loop.rounds(2)
    case = next(s for s in loop.steps if s.path == "loop.when[case-0]")
    loop.add(case, ".weigh", ObjectType.CALL, facet="t.weigh", address="t.loop/0/when/0/weigh")
    assert names(drawn(loop.steps, 100))[:4] == [
        *["loop", "  round 1", "    work", "    when[case-0].weigh"],
    ]


def test_a_facet_that_calls_itself_twice_stays_nested() -> None:
    loop = Loop()
    first = loop.add(None, "loop", ObjectType.WORKFLOW, facet="t.loop")
    body = loop.add(first, "", ObjectType.BLOCK)
    for name in (".left", ".right"):
        loop.add(body, name, ObjectType.CALL, facet="t.loop", address=f"t.loop/0/{name}")
    assert names(drawn(loop.steps, 100)) == ["loop", "  left", "  right"]


def test_facets_that_call_each_other_are_rounds_of_the_outermost() -> None:
    loop, parent = Loop(), None
    for number in range(6):
        name = "ab"[number % 2]
        kind = ObjectType.CALL if parent else ObjectType.WORKFLOW
        call = loop.add(parent, f".{name}" if parent else name, kind, facet=f"t.{name}")
        parent = loop.add(call, "", ObjectType.BLOCK, address=f"t.{name}/0")
    rounds = [line for n in (1, 2, 3) for line in (f"  round {n}", "    b")]
    assert names(drawn(loop.steps, 100)) == ["a", *rounds]


def test_nested_branches_of_one_body_are_no_rounds() -> None:
    loop = Loop()
    body: StepInfo = loop.add(None, "loop", ObjectType.WORKFLOW, facet="t.loop")
    for _ in range(3):
        when = loop.add(body, ".when", ObjectType.CALL, facet="std.when")
        cases = loop.add(when, "", ObjectType.WHEN)
        body = loop.add(cases, "[case-0]", ObjectType.CASE)
    assert "round" not in "".join(drawn(loop.steps, 100))
