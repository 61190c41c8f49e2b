"""The tree of a run is drawn however deep and wide it is."""

from __future__ import annotations

import io

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
