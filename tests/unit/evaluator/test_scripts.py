"""Scripts are events whose map of results is taken over whole."""

from __future__ import annotations

from typing import Any

from flowengine.evaluator import RunState
from tests.builders import (
    Node,
    block,
    catching,
    event,
    facet,
    given,
    of,
    program,
    signed,
    step,
    to,
    workflow,
)
from tests.unit.evaluator.in_memory_run import MemoryRun

CODE = "result['y'] = params['x'] * 2"
SCRIPT: Node = {"type": "ScriptBlock", "language": "python", "code": CODE}
E = event("E", "x", "y")


def run_of(declared: Node, call: Node | None = None, value: Any = None) -> MemoryRun:
    called = call or step("s", "F", x=4)
    flow = workflow("W", "", "out", block(called, yields=[to("W", out=value or of("s.y"))]))
    return MemoryRun(program(E, declared, flow))


def test_a_script_block_gets_the_parameters_and_its_results_are_the_steps() -> None:
    run = run_of(facet("F", "x", "y", SCRIPT))
    task = run.task("W.s.script")
    assert (task.name, task.task_list_name) == ("flowengine.script", "scripts")
    assert task.data == {"code": CODE, "params": {"x": 4}}
    run.succeed("W.s.script", result={"y": 8, "more": 1})
    assert run.outputs == {"out": 8}
    assert run.step("W.s").returns == {"y": 8, "more": 1}


def test_a_failed_script_fails_its_step_which_may_catch_it() -> None:
    call = catching(step("s", "F", x=4), yields=[to("F", y=given("error"))])
    run = run_of(facet("F", "x", "y", SCRIPT), call)
    run.fail("W.s.script", "no")
    assert run.outputs == {"out": "no"}


def test_a_script_that_gives_no_map_fails() -> None:
    run = run_of(facet("F", "x", "y", SCRIPT))
    run.succeed("W.s.script", result=[1])
    assert run.view.state == RunState.FAILED
    assert run.view.error is not None
    assert run.view.error["message"] == "the script gave no map"


def test_a_script_before_the_event_changes_its_parameters() -> None:
    run = run_of(event("F", "x", "y") | {"pre_script": SCRIPT})
    assert [task.step_path for task in run.outstanding()] == ["W.s[script]"]
    run.succeed("W.s[script]", result={"x": 5})
    assert run.task("W.s").data == {"x": 5}
    run.succeed("W.s", y=6)
    assert run.outputs == {"out": 6}


def test_a_script_comes_before_the_mixins() -> None:
    mixing = signed(facet("F", "x", "y"), "E", "e", x=given("x")) | {"pre_script": SCRIPT}
    run = run_of(mixing, value=of("s.e.y"))
    run.succeed("W.s[script]", result={"x": 5})
    assert run.task("W.s[with-e]").data == {"x": 5}
    run.succeed("W.s[with-e]", y=6)
    assert run.outputs == {"out": 6}
