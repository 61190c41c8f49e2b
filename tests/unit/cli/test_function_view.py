"""The calls of a durable function are steps of the tree; a long list is folded."""

from __future__ import annotations

from dataclasses import replace

from flowengine.engine import StepInfo
from flowengine.evaluator.states import ObjectType, StepState, TaskState
from tests.unit.cli.test_run_view import drawn

_S = StepState


def function(state: str = _S.SUSPENDED, tries: int = 3) -> list[StepInfo]:
    root = StepInfo(
        "r", "research", ObjectType.WORKFLOW, "shop.research", _S.BLOCKS_CONTINUE, None, "r", 0,
        {}, {}, None, 0, 1,
    )  # fmt: skip
    block = replace(root, id="b", object_type=ObjectType.BLOCK, facet="", parent="r", key="b")
    step = replace(
        block, id="s", path="research.research", object_type=ObjectType.CALL, parent="b", key="s",
        facet="shop.research@2", state=state, tries=tries, task_state=TaskState.COMPLETED, ran=5,
    )  # fmt: skip
    return [root, block, step]


def call(number: int, name: str, state: str = _S.COMPLETE) -> StepInfo:
    path = f"research.research.{name}#{number}"
    facet = f"flowengine.{name}" if name == "sleep" else f"shop.{name}"
    error = {"type": "OSError", "message": "no", "path": path} if state == _S.ERROR else None
    return StepInfo(
        path, path, ObjectType.FUNCTION_CALL, facet, state, "s", path, number,
        {}, {}, error, 0, 1, ran=3,
    )  # fmt: skip


def test_a_suspended_function_says_how_often_it_ran_and_for_what_it_waits() -> None:
    one = [*function(), call(0, "ask"), call(1, "sleep", _S.EVENT_TRANSMIT)]
    lines = drawn(one, 120)
    assert lines[2] == "└── ◔ research  waits for sleep#1  5 ms  3 activations"
    assert lines[3] == "    ├── ✓ ask#0  3 ms"
    assert lines[4].startswith("    └── ☾ sleep#1  sleeps")
    more = [call(number, "ask", _S.EVENT_TRANSMIT) for number in (2, 3)]
    assert "waits for sleep#1 and 2 more calls" in drawn([*one, *more], 120)[2]


def test_a_long_list_of_calls_is_folded_around_the_open_and_the_failed_ones() -> None:
    calls = [call(number, "ask") for number in range(1_000)]
    calls[500] = call(500, "ask", _S.ERROR)
    calls[700] = call(700, "ask", _S.EVENT_TRANSMIT)
    lines = [line.strip("├└─│ ") for line in drawn([*function(), *calls], 120)[3:]]
    names = [line.split()[1] for line in lines if not line.startswith("…")]
    assert names == [f"ask#{n}" for n in (*range(8), 500, 700, *range(984, 1_000))]
    assert [line for line in lines if line.startswith("…")] == [
        "… 492 more calls: 492 complete",
        "… 199 more calls: 199 complete",
        "… 283 more calls: 283 complete",
    ]


def test_a_function_that_has_ended_names_its_version_nowhere_but_its_activations() -> None:
    lines = drawn([*function(_S.COMPLETE, 1), call(0, "ask")], 120)
    assert lines[2] == "└── ✓ research  5 ms"
    assert drawn([*function(_S.COMPLETE, 2), call(0, "ask")], 120)[2].endswith("2 activations")
