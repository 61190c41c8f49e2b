"""The evaluator answers built-in facets, once, without a worker."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from flowengine.program import write_program
from flowengine.program.nodes import Namespace, Program
from flowengine.program.standard import STANDARD
from tests.builders import Node, block, event, of, program, step, to, workflow
from tests.unit.evaluator.in_memory_run import MemoryRun

NOON = 1_700_000_000_123


def run_of(*steps: Node, **results: str) -> MemoryRun:
    standard = write_program(Program((Namespace("flowengine", (), tuple(STANDARD.values())),)))
    yields = [to("W", **{name: of(path) for name, path in results.items()})]
    body = workflow("W", "", list(results), block(*steps, yields=yields))
    run = MemoryRun(program(*standard["declarations"], event("E", "x", "y"), body))
    run.now = NOON
    return run


def outputs(run: MemoryRun) -> Any:
    assert run.outputs is not None
    return run.outputs


def test_the_time_is_that_of_the_decision_and_stays() -> None:
    run = run_of(
        step("begin", "flowengine.now"),
        step("work", "E", x=of("begin.result")),
        step("end", "flowengine.now", after=of("work.y")),
        begin="begin.result",
        end="end.result",
    )
    (task,) = run.tasks.values()
    assert task.data == {"x": "1970-01-01T00:00:00.001Z"}  # each decision is a millisecond later
    run.succeed("W.work", y=1)
    assert outputs(run) == {"begin": "1970-01-01T00:00:00.001Z", "end": "2023-11-14T22:13:20.124Z"}


def test_an_id_is_a_uuid_of_the_step_alone() -> None:
    parts = step("one", "flowengine.uuid"), step("other", "flowengine.uuid")
    first = outputs(run_of(*parts, one="one.result", other="other.result"))
    again = outputs(run_of(*parts, one="one.result", other="other.result"))
    assert first == again
    assert first["one"] != first["other"]
    assert str(UUID(first["one"])) == first["one"]


def test_no_task_is_made_for_them() -> None:
    assert not run_of(step("t", "flowengine.now"), step("u", "flowengine.uuid")).tasks
