"""The evaluator decides what a run does next, without a database."""

from __future__ import annotations

from typing import Any

import pytest

from flowengine.evaluator import IterationChanges, RunState, RunView, Snapshot, evaluate
from flowengine.evaluator.records import FollowUp, TaskDefinition
from flowengine.evaluator.scope import RowScope
from flowengine.evaluator.states import TaskState
from flowengine.evaluator.triggers import Failed, Lost, Outcome, Started, Succeeded
from flowengine.evaluator.working_set import PORTION
from flowengine.program import link_program, parse_program
from flowengine.store import codec
from tests.builders import (
    Node,
    block,
    check,
    event,
    facet,
    given,
    item,
    joined,
    listed,
    log,
    of,
    op,
    program,
    step,
    to,
    workflow,
)
from tests.unit.evaluator.in_memory_run import MemoryRun

E = event("E", "x", "y")


def run_of(
    *blocks: Node, beside: tuple[Node, ...] = (), options: Node | None = None, **inputs: Any
) -> MemoryRun:
    """A run of W with these blocks and inputs, beside the event facet E(x) => (y)."""
    e = event("E", "x", "y", options=options)
    return MemoryRun(program(e, *beside, workflow("W", list(inputs), "out", *blocks)), inputs)


def echo(task: TaskDefinition) -> Outcome:
    return Succeeded({"y": (task.data or {})["x"]})


# --- starting and ending ---


def test_a_workflow_without_a_body_is_over_at_once() -> None:
    run = run_of()
    assert run.view.state == RunState.COMPLETED
    assert run.outputs == {}


def test_plain_steps_alone_are_over_in_one_commit() -> None:
    run = run_of(
        block(
            step("p", "P", a=given("n")),
            step("q", "P", a=op(of("p.a"), "+", 1)),
            yields=[to("W", out=of("q.a"))],
        ),
        beside=(facet("P", "a"),),
        n=1,
    )
    assert len(run.commits) == 1
    assert run.outputs == {"out": 2}


def test_starting_twice_creates_nothing_twice() -> None:
    run = run_of(block(step("s", "E", x=1)))
    assert run.consume_inbox(Started({})).is_empty


def test_an_event_step_rests_with_one_event_and_one_task() -> None:
    run = run_of(block(step("s", "E", x=given("n"))), n=5)
    (task,) = run.outstanding()
    assert (task.name, task.step_path, task.data) == ("E", "W.s", {"x": 5})
    assert run.states() == {"W": "Continue", "W.s": "EventTransmit"}
    assert run.view.open_steps == 1


def test_defaults_replace_missing_inputs_and_null_overrides_them() -> None:
    document = program(
        workflow(
            "W",
            [{"name": "a", "default": 1}, {"name": "b", "default": 2}],
            "out",
            block(yields=[to("W", out=listed(given("a"), given("b")))]),
        )
    )
    assert MemoryRun(document, {"b": None}).outputs == {"out": [1, None]}


# --- answers ---


def test_a_completed_step_begins_the_steps_that_waited_for_it() -> None:
    run = run_of(
        block(step("a", "E", x=1), step("b", "E", x=of("a.y")), yields=[to("W", out=of("b.y"))])
    )
    assert "W.b" not in run.states()
    run.succeed("W.a", y=7)
    assert run.task("W.b").data == {"x": 7}
    run.succeed("W.b", y=8)
    assert run.outputs == {"out": 8}


def test_a_join_waits_for_all() -> None:
    run = run_of(
        block(
            step("a", "E", x=1),
            step("b", "E", x=2),
            step("c", "E", x=listed(of("a.y"), of("b.y"))),
        )
    )
    run.succeed("W.b", y=20)
    assert run.states()["W.c"] == "Created"
    run.succeed("W.a", y=10)
    assert run.task("W.c").data == {"x": [10, 20]}


def test_a_duplicate_answer_decides_nothing() -> None:
    run = run_of(block(step("a", "E", x=1), step("b", "E", x=of("a.y"))))
    task = run.task("W.a")
    run.report(task, Succeeded({"y": 1}))
    assert run.consume_inbox(run.ended(task, Succeeded({"y": 1}))).is_empty
    assert run.consume_inbox(run.ended(task, Succeeded({"y": 2}))).is_empty
    assert run.consume_inbox(run.ended(task, Failed({"type": "T", "message": "m"}))).is_empty
    assert run.consume_inbox(run.ended(task, Lost("gone"))).is_empty
    assert run.consume_inbox(run.continued("W.a", y=3)).is_empty
    assert run.consume_inbox(run.failed("W.a", "no")).is_empty
    assert run.step("W.a").returns == {"y": 1}


def test_two_answers_in_one_commit_the_first_counts() -> None:
    run = run_of(block(step("a", "E", x=1), yields=[to("W", out=of("a.y"))]))
    task = run.task("W.a")
    task.state = TaskState.COMPLETED
    run.consume_inbox(
        run.ended(task, Succeeded({"y": 1})), run.continued("W.a", y=2), run.failed("W.a", "no")
    )
    assert run.outputs == {"out": 1}


def test_an_answer_for_a_failed_or_skipped_step_decides_nothing() -> None:
    run = run_of(
        block(
            step("a", "E", x=1), step("b", "E", x=2), step("c", "E", x=listed(of("a.y"), of("b.y")))
        )
    )
    run.fail("W.a")
    assert run.states()["W.c"] == "Skipped"
    for path in ("W.a", "W.c"):
        assert run.consume_inbox(run.continued(path, y=1)).is_empty
        assert run.consume_inbox(run.failed(path, "again")).is_empty


def test_an_answer_past_the_tasks_stops_them() -> None:
    run = run_of(block(step("a", "E", x=1), yields=[to("W", out=of("a.y"))]))
    changes = run.consume_inbox(run.continued("W.a", y=9))
    assert changes.canceled_steps == [run.step("W.a").id]
    assert run.task("W.a").state == "canceled"
    assert run.outputs == {"out": 9}


def test_an_answer_behind_a_failure_in_one_commit_leaves_no_try_open() -> None:
    run = run_of(
        block(step("a", "E", x=1), yields=[to("W", out=of("a.y"))]),
        options={"retry": {"attempts": 2}},
    )
    task = run.task("W.a")
    task.state = TaskState.FAILED
    run.consume_inbox(
        run.ended(task, Failed({"type": "Oops", "message": "no"})), run.continued("W.a", y=9)
    )
    assert not run.outstanding()
    assert run.outputs == {"out": 9}


def test_a_step_can_be_failed_from_outside() -> None:
    run = run_of(block(step("a", "E", x=1)))
    run.consume_inbox(run.failed("W.a", "not today"))
    assert run.view.state == RunState.FAILED
    assert run.view.error == {"type": "StepFailed", "message": "not today", "path": "W.a"}


def test_answers_of_an_older_generation_of_a_step_decide_nothing() -> None:
    run = run_of(block(step("a", "E", x=1)))
    task = run.task("W.a")
    task.step_id = "another step of the same name"
    assert run.consume_inbox(run.ended(task, Succeeded({"y": 1}))).is_empty


# --- retries ---


def test_a_failure_opens_the_next_try_and_the_last_one_fails_the_step() -> None:
    run = run_of(block(step("a", "E", x=1)), options={"retry": {"attempts": 2}})
    run.fail("W.a", "first")
    (again,) = run.outstanding()
    assert (again.try_number, again.due) == (2, run.now + 1000)
    run.fail("W.a", "second")
    assert run.view.error == {
        "type": "Oops",
        "message": "second (failed 2 of 2 tries)",
        "path": "W.a",
    }


def test_an_error_that_will_not_go_away_is_not_tried_again() -> None:
    run = run_of(block(step("a", "E", x=1)), options={"retry": {"attempts": 5}})
    run.fail("W.a", retry=False)
    assert run.states()["W.a"] == "Error"


def test_a_lost_try_is_tried_again_until_the_limit_of_losses() -> None:
    run = run_of(block(step("a", "E", x=1)), options={"max_losses": 1})
    run.report(run.task("W.a"), Lost("killed"))
    assert run.task("W.a").losses == 1
    run.report(run.task("W.a"), Lost("killed"))
    assert run.view.error is not None
    assert run.view.error["type"] == "WorkerLost"
    assert "killed (its worker died 2 times, 1 losses are allowed)" in run.view.error["message"]


def test_deciding_another_try_twice_opens_one() -> None:
    run = run_of(block(step("a", "E", x=1)), options={"retry": {"attempts": 3}})
    task = run.task("W.a")
    run.fail("W.a")
    run.consume_inbox(run.ended(task, Failed({"type": "Oops", "message": "broken"})))
    assert len(run.outstanding()) == 1


# --- failing and skipping ---


def test_the_dependents_of_a_failed_step_are_skipped_with_the_reason_and_others_run() -> None:
    run = run_of(
        block(
            step("a", "E", x=1),
            step("b", "E", x=of("a.y")),
            step("c", "E", x=of("b.y")),
            step("other", "E", x=2),
            yields=[to("W", out=1)],
        )
    )
    run.fail("W.a", "boom")
    assert run.states() == {
        "W": "Continue",
        "W.a": "Error",
        "W.b": "Skipped",
        "W.c": "Skipped",
        "W.other": "EventTransmit",
    }
    for path in ("W.b", "W.c"):
        assert run.step(path).error == {
            "type": "Skipped",
            "message": "skipped: W.a failed: boom",
            "path": "W.a",
        }
    run.succeed("W.other", y=1)
    assert run.view.state == RunState.FAILED
    assert run.view.error == {"type": "Oops", "message": "boom", "path": "W.a"}
    assert run.outputs is None


@pytest.mark.parametrize("order", [("W.a", "W.b"), ("W.b", "W.a")])
def test_the_first_of_two_failures_in_the_program_is_the_runs_error(order: tuple[str, str]) -> None:
    run = run_of(block(step("a", "E", x=1), step("b", "E", x=2)))
    for path in order:
        run.fail(path, f"at {path}")
    assert run.view.error == {"type": "Oops", "message": "at W.a", "path": "W.a"}


def test_an_argument_without_a_value_fails_its_step_alone() -> None:
    run = run_of(block(step("a", "E", x=op(1, "/", given("n"))), step("b", "E", x=1)), n=0)
    assert run.states()["W.a"] == "Error"
    assert run.states()["W.b"] == "EventTransmit"
    run.succeed("W.b")
    assert run.view.error == {
        "type": "EvaluationError",
        "message": "division by zero: 1 / 0",
        "path": "W.a",
    }


def test_an_attribute_that_was_not_returned_fails_the_reader() -> None:
    run = run_of(block(step("a", "E", x=1), step("b", "E", x=of("a.y"))))
    run.succeed("W.a", z=1)
    assert run.view.error is not None
    assert run.view.error["message"] == "step 'a' has no 'y': E returned z"


def test_an_assertion_that_does_not_hold_fails_the_run_and_not_its_neighbours() -> None:
    run = run_of(block(check(op(given("n"), ">", 1)), step("a", "E", x=1)), n=1)
    assert run.states()["W.sys.assert"] == "Error"
    run.succeed("W.a", y=1)
    assert run.view.error == {
        "type": "AssertionFailed",
        "message": "sys.assert does not hold",
        "path": "W.sys.assert",
    }


def test_a_yield_without_a_value_fails_its_block() -> None:
    run = run_of(block(yields=[to("W", out=item([], 0))]))
    assert run.view.error is not None
    assert run.view.error["message"] == "in its result: index 0 is outside a list of 0"


def test_a_number_too_large_for_json_fails_its_step() -> None:
    run = run_of(block(step("a", "E", x=op(given("n"), "*", 10))), n=1e308)
    assert run.states() == {"W": "Error", "W.a": "Error"}


def test_a_block_with_a_failed_step_yields_nothing_and_the_others_do() -> None:
    inner = (
        block(step("bad", "E", x=1), yields=[to("P", a=1)]),
        block(step("good", "E", x=2), yields=[to("P", b=2)]),
    )
    run = run_of(block(step("p", "P", *inner)), beside=(facet("P", "", "a b"),))
    run.fail("W.p.block-0.bad")
    run.succeed("W.p.block-1.good", y=1)
    assert run.states()["W.p"] == "Error"


# --- bodies ---


def test_an_inline_body_waits_for_an_outer_step() -> None:
    run = run_of(
        block(
            step("late", "E", x=1),
            step("s", "E", block(step("inner", "E", x=of("late.y"))), x=2),
        )
    )
    run.succeed("W.s", y=0)
    assert run.states()["W.s.inner"] == "Created"
    run.succeed("W.late", y=5)
    assert run.task("W.s.inner").data == {"x": 5}


def test_an_inline_body_that_begins_later_sees_an_outer_step_that_has_ended() -> None:
    run = run_of(
        block(
            step("early", "E", x=1),
            step("s", "E", block(step("inner", "E", x=of("early.y"))), x=2),
        )
    )
    run.succeed("W.early", y=5)
    run.succeed("W.s", y=0)
    assert run.task("W.s.inner").data == {"x": 5}


def test_an_inline_body_is_skipped_where_an_outer_step_failed() -> None:
    body = block(step("inner", "E", x=of("outer.y")), step("free", "E", x=1))
    run = run_of(block(step("outer", "E", x=1), step("s", "E", body, x=2)))
    run.fail("W.outer")
    run.succeed("W.s")
    assert run.states()["W.s.inner"] == "Skipped"
    run.succeed("W.s.free")
    assert run.view.error is not None
    assert run.view.error["path"] == "W.outer"


def test_an_inline_body_reads_and_overlays_the_results_of_its_own_event() -> None:
    body = block(
        step("more", "E", x=op(of("s.y"), "+", given("x"))),
        yields=[to("F", y=of("more.y"), z=of("s.y"))],
    )
    run = run_of(
        block(step("s", "F", body, x=1), yields=[to("W", out=of("s"))]),
        beside=(event("F", "x", "y z"),),
    )
    run.succeed("W.s", y=10, kept=True)
    assert run.task("W.s.more").data == {"x": 11}
    run.succeed("W.s.more", y=99)
    assert run.outputs == {"out": {"x": 1, "y": 99, "z": 10, "kept": True}}


def test_a_body_on_a_statement_replaces_the_body_of_its_facet() -> None:
    declared = facet("P", "", "a", block(yields=[to("P", a="facet")]))
    run = run_of(
        block(
            step("p", "P", block(yields=[to("P", a="own")])),
            step("q", "P"),
            yields=[to("W", out=joined(of("p.a"), "+", of("q.a")))],
        ),
        beside=(declared,),
    )
    assert run.outputs == {"out": "own+facet"}


def test_two_calls_of_a_facet_keep_their_instances_apart() -> None:
    declared = facet(
        "P", "a", "b", block(step("e", "E", x=given("a")), yields=[to("P", b=of("e.y"))])
    )
    run = run_of(
        block(
            step("p", "P", a=1),
            step("q", "P", a=2),
            yields=[to("W", out=listed(of("p.b"), of("q.b")))],
        ),
        beside=(declared,),
    )
    run.succeed("W.q.e", y=20)
    run.succeed("W.p.e", y=10)
    assert run.outputs == {"out": [10, 20]}


def test_a_block_reads_a_step_of_an_earlier_block() -> None:
    run = run_of(
        block(step("a", "E", x=1)),
        block(step("b", "E", x=of("a.y")), yields=[to("W", out=listed(of("a.y"), of("b.y")))]),
    )
    assert run.states()["W.block-1.b"] == "Created"
    run.succeed("W.block-0.a", y=3)
    run.succeed("W.block-1.b", y=4)
    assert run.outputs == {"out": [3, 4]}


def test_a_yield_waits_for_a_step_of_an_earlier_block() -> None:
    run = run_of(block(step("a", "E", x=1)), block(yields=[to("W", out=of("a.y"))]))
    assert run.view.state == RunState.RUNNING
    run.succeed("W.block-0.a", y=3)
    assert run.outputs == {"out": 3}


def test_blocks_merge_in_program_order_for_any_order_in_time() -> None:
    blocks = [
        block(step("e", "E", x=i), yields=[to("W", out=listed(of("e.y")), last=of("e.y"))])
        for i in range(3)
    ]
    run = MemoryRun(program(event("E", "x", "y"), workflow("W", "", "out last", *blocks)), {})
    for i in (2, 0, 1):
        run.succeed(f"W.block-{i}.e", y=i)
    assert run.outputs == {"out": [0, 1, 2], "last": 2}


def test_a_body_may_yield_to_the_enclosing_workflow() -> None:
    body = block(step("i", "E", x=1), yields=[to("W", out=listed(of("i.y"))), to("E", y=1)])
    run = run_of(block(step("s", "E", body, x=2), yields=[to("W", out=listed(of("s.y")))]))
    run.succeed("W.s")
    run.succeed("W.s.i", y=7)
    assert run.outputs == {"out": [7, 1]}


def test_a_log_step_keeps_its_arguments() -> None:
    run = run_of(block(log(n=given("n"))), n=3)
    assert run.step("W.sys.log").params == {"n": 3}


# --- foreach ---


def each(*statements: Node, over: Any, yields: tuple[Node, ...] = ()) -> Node:
    return block(*statements, foreach=("v", over), yields=yields)


COLLECT = (to("W", out=listed(of("e.y"))),)


def test_the_results_of_a_foreach_are_in_item_order() -> None:
    run = run_of(each(step("e", "E", x=given("v")), over=given("xs"), yields=COLLECT), xs=[5, 6, 7])
    for i in (1, 2, 0):
        run.succeed(f"W[{i}].e", y=i * 10)
    assert run.outputs == {"out": [0, 10, 20]}


def test_an_empty_list_gives_an_empty_list() -> None:
    run = run_of(each(step("e", "E", x=given("v")), over=[], yields=COLLECT))
    assert run.outputs == {"out": []}


def test_an_empty_foreach_inside_a_body_gives_an_empty_list_to_the_enclosing_workflow() -> None:
    body = each(step("e", "E", x=1), over=of("s.y"), yields=COLLECT)
    run = run_of(block(step("s", "E", body, x=1)))
    run.succeed("W.s", y=[])
    assert run.outputs == {"out": []}


def test_a_foreach_over_something_else_fails() -> None:
    run = run_of(each(step("e", "E", x=1), over=given("n")), n="abc")
    assert run.view.error == {
        "type": "EvaluationError",
        "message": "foreach needs a list, found str",
        "path": "W",
    }


def test_a_foreach_waits_for_the_step_it_goes_over() -> None:
    run = run_of(
        block(step("a", "E", x=1)),
        each(step("e", "E", x=given("v")), over=of("a.y"), yields=COLLECT),
    )
    run.succeed("W.block-0.a", y=[1, 2])
    run.answer_all(echo)
    assert run.outputs == {"out": [1, 2]}


def test_a_foreach_over_a_failed_step_is_skipped() -> None:
    run = run_of(block(step("a", "E", x=1)), each(step("e", "E", x=1), over=of("a.y")))
    run.fail("W.block-0.a")
    assert run.view.state == RunState.FAILED
    assert "W.foreach-1[0].e" not in run.states()


def test_a_foreach_in_a_body_over_a_step_that_failed_before_is_skipped_at_once() -> None:
    over = op(of("bad.y"), "+", of("slow.y"))
    run = run_of(
        block(
            step("bad", "E", x=1),
            step("slow", "E", x=2),
            step("s", "E", each(step("e", "E", x=1), over=over), x=3),
        )
    )
    run.fail("W.bad")
    run.succeed("W.s")
    assert run.states()["W.s"] == "Skipped"


def test_items_that_read_an_outer_step_wait_for_it_together() -> None:
    run = run_of(
        block(step("rate", "E", x=1)),
        each(
            step("e", "E", x=op(given("v"), "*", of("rate.y"))),
            over=given("xs"),
            yields=COLLECT,
        ),
        xs=[1, 2, 3],
    )
    assert run.states() == {"W": "Continue", "W.block-0.rate": "EventTransmit"}
    run.succeed("W.block-0.rate", y=10)
    run.answer_all(echo)
    assert run.outputs == {"out": [10, 20, 30]}


def test_items_that_read_a_failed_outer_step_are_skipped_one_by_one() -> None:
    run = run_of(
        block(step("rate", "E", x=1)),
        each(step("e", "E", x=of("rate.y")), step("free", "E", x=given("v")), over=[1, 2]),
    )
    run.fail("W.block-0.rate")
    states = run.states()
    assert [states[f"W.foreach-1[{i}].e"] for i in (0, 1)] == ["Skipped", "Skipped"]
    assert [states[f"W.foreach-1[{i}].free"] for i in (0, 1)] == ["EventTransmit"] * 2


def test_a_step_that_list_and_items_name_is_counted_once() -> None:
    run = run_of(
        block(step("a", "E", x=1), step("b", "E", x=2)),
        each(step("e", "E", x=listed(of("a.y"), of("b.y"))), over=of("a.y")),
    )
    run.succeed("W.block-0.a", y=[1])
    assert "W.foreach-1[0].e" not in run.states(), "it begins when b has ended too"
    run.succeed("W.block-0.b", y=2)
    assert run.task("W.foreach-1[0].e").data == {"x": [[1], 2]}


def test_one_failed_item_fails_the_run_and_the_others_end_first() -> None:
    run = run_of(each(step("e", "E", x=given("v")), over=[1, 2, 3], yields=COLLECT))
    run.fail("W[1].e", "boom")
    assert run.view.state == RunState.RUNNING
    run.succeed("W[0].e", y=1)
    run.succeed("W[2].e", y=1)
    assert run.view.error == {"type": "Oops", "message": "boom", "path": "W[1].e"}


def test_foreach_inside_foreach_keeps_both_orders() -> None:
    inner = facet(
        "Row",
        "xs",
        "out",
        block(
            step("e", "E", x=given("c")),
            yields=[to("Row", out=listed(of("e.y")))],
            foreach=("c", given("xs")),
        ),
    )
    run = run_of(
        each(
            step("r", "Row", xs=given("v")),
            over=given("m"),
            yields=(to("W", out=listed(of("r.out"))),),
        ),
        beside=(inner,),
        m=[[1, 2], [], [3]],
    )
    for task in reversed(run.outstanding()):
        run.report(task, echo(task))
    assert run.outputs == {"out": [[1, 2], [], [3]]}


# --- portions ---


def test_a_long_foreach_is_expanded_in_several_commits() -> None:
    run = run_of(each(step("e", "E", x=given("v")), over=given("xs")), xs=list(range(1000)))
    assert run.facts == [FollowUp("Expand", run.facts[0].payload)]
    assert run.created_items(run.commits[0]) == PORTION
    run.settle()
    assert [run.created_items(commit) for commit in run.commits] == [PORTION] * (1000 // PORTION)
    assert len(run.outstanding()) == 1000
    assert not run.facts


def test_a_long_foreach_of_plain_steps_ends_with_all_its_items() -> None:
    run = run_of(
        each(
            step("e", "P", a=given("v")), over=given("xs"), yields=(to("W", out=listed(of("e.a"))),)
        ),
        beside=(facet("P", "a"),),
        xs=list(range(1000)),
    )
    run.settle()
    assert run.outputs == {"out": list(range(1000))}


def test_two_long_foreach_blocks_share_a_portion_and_none_is_forgotten() -> None:
    one = each(
        step("e", "P", a=given("v")), over=given("xs"), yields=(to("W", out=listed(of("e.a"))),)
    )
    run = run_of(one, one, one, beside=(facet("P", "a"),), xs=list(range(300)))
    run.settle()
    assert run.outputs == {"out": [*range(300)] * 3}
    assert all(run.created_items(commit) <= PORTION for commit in run.commits)


def test_a_long_foreach_of_foreachs_ends() -> None:
    row = facet("Row", "xs", "n", block(step("p", "P", a=given("c")), foreach=("c", given("xs"))))
    run = run_of(
        each(step("r", "Row", xs=[1, 2]), over=given("xs")),
        beside=(facet("P", "a"), row),
        xs=list(range(300)),
    )
    run.settle()
    assert run.view.state == RunState.COMPLETED
    assert sum(run.created_items(commit) for commit in run.commits) == 900


def test_reports_between_two_portions_are_evaluated() -> None:
    run = run_of(
        each(step("e", "E", x=given("v")), over=given("xs"), yields=COLLECT), xs=list(range(300))
    )
    run.fail("W[0].e")
    run.succeed("W[1].e", y=1)
    run.answer_all(echo)
    assert run.view.state == RunState.FAILED
    assert run.view.error is not None
    assert run.view.error["path"] == "W[0].e"


# --- size ---


def chain(length: int, call: str, argument: str, attribute: str) -> Node:
    first = step("s0", call, **{argument: given("n")})
    following = [
        step(f"s{i}", call, **{argument: of(f"s{i - 1}.{attribute}")}) for i in range(1, length)
    ]
    return block(first, *following, yields=[to("W", out=of(f"s{length - 1}.{attribute}"))])


def test_a_chain_of_5000_plain_steps_ends_in_one_commit_without_recursion() -> None:
    run = run_of(chain(5000, "P", "a", "a"), beside=(facet("P", "a"),), n=7)
    assert run.outputs == {"out": 7}
    assert len(run.commits) == 1


def test_a_chain_of_5000_steps_is_skipped_without_recursion() -> None:
    run = run_of(chain(5000, "E", "x", "y"), n=7)
    run.fail("W.s0")
    assert run.view.state == RunState.FAILED
    assert list(run.states().values()).count("Skipped") == 4999


def test_facets_100_deep_end_without_recursion() -> None:
    deep = [
        facet("F0", "a", "b", block(step("e", "E", x=given("a")), yields=[to("F0", b=of("e.y"))]))
    ]
    for i in range(1, 100):
        inner = step("f", f"F{i - 1}", a=given("a"))
        deep.append(facet(f"F{i}", "a", "b", block(inner, yields=[to(f"F{i}", b=of("f.b"))])))
    run = run_of(block(step("f", "F99", a=1), yields=[to("W", out=of("f.b"))]), beside=tuple(deep))
    run.answer_all(echo)
    assert run.outputs == {"out": 1}


def test_the_cost_of_an_answer_does_not_grow_with_the_run() -> None:
    def touched(length: int) -> int:
        steps = [step(f"s{i}", "E", x=1) for i in range(length)]
        changes = run_of(block(*steps)).succeed("W.s0", y=1) if length else None
        assert changes is not None
        return len(changes.created_steps) + len(changes.updated_steps)

    # The first example of each length is started and answered once; only the answer counts.
    assert touched(10) == touched(400)


def test_any_number_of_reports_at_once_needs_few_round_trips() -> None:
    pair = facet(
        "Pair",
        "a",
        "b",
        block(
            step("e", "E", x=given("a")),
            step("f", "E", x=given("a")),
            step("g", "E", x=listed(of("e.y"), of("f.y"))),
            yields=[to("Pair", b=of("g.y"))],
        ),
    )

    def trips(count: int) -> list[int]:
        run = run_of(
            each(
                step("p", "Pair", a=given("v")),
                over=given("xs"),
                yields=(to("W", out=listed(of("p.b"))),),
            ),
            beside=(pair,),
            xs=list(range(count)),
        )
        found = []
        for name in "efg":
            tasks = [task for task in run.outstanding() if task.step_path.endswith(name)]
            for task in tasks:
                task.state = TaskState.COMPLETED
            run.consume_inbox(*(run.ended(task, echo(task)) for task in tasks))
            found.append(run.trips)
        assert run.outputs == {"out": [[i, i] for i in range(count)]}
        return found

    assert trips(5) == trips(100)


# --- large values ---


def test_a_large_value_is_passed_on_unread_and_loaded_when_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codec, "INLINE_BYTES", 10)
    text = "x" * 50
    run = run_of(
        block(
            step("a", "E", x=given("t")),
            step("b", "E", x=of("a.y")),
            step("c", "E", x=joined(of("b.y"), "!")),
            yields=[to("W", out=of("c.y"))],
        ),
        t=text,
    )
    run.answer_all(echo)
    assert run.outputs == {"out": text + "!"}


def test_a_foreach_over_a_large_list_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "INLINE_BYTES", 10)
    xs = list(range(100, 120))
    run = run_of(each(step("e", "E", x=given("v")), over=given("xs"), yields=COLLECT), xs=xs)
    run.answer_all(echo)
    assert run.outputs == {"out": xs}


# --- errors of values ---


def test_an_error_that_a_value_causes_fails_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("Exceeds the limit for integer string conversion")

    run = run_of(block(step("a", "E", x=1), step("b", "E", x=of("a.y")), step("c", "E", x=2)))
    monkeypatch.setattr(RowScope, "values", broken)
    run.succeed("W.a", y=1)
    assert run.states()["W.b"] == "Error"
    assert run.view.state == RunState.RUNNING, "unrelated steps go on"
    run.succeed("W.c", y=1)
    assert run.view.state == RunState.FAILED
    assert run.view.error is not None
    assert run.view.error["type"] == "EvaluationError"
    assert run.view.error["path"] == "W.b"


def test_a_broken_invariant_is_raised_and_fails_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise AssertionError("a defect of the engine")

    run = run_of(block(step("a", "E", x=1), step("b", "E", x=of("a.y"))))
    monkeypatch.setattr(RowScope, "values", broken)
    with pytest.raises(AssertionError):
        run.succeed("W.a", y=1)


# --- the alarm ---


def test_waiting_with_nothing_outstanding_raises_an_alarm() -> None:
    plan = link_program(
        parse_program(program(E, workflow("W", "", "", block(step("s", "E", x=1)))))
    )
    run = RunView("run", "W", "hash")
    started = evaluate(plan, run, Snapshot(dict.fromkeys(_keys())), [Started({})], 0)
    assert isinstance(started, IterationChanges)
    assert run.alarm is None
    run.open_steps = 0  # as if the rows had been tampered with
    snapshot = Snapshot({row.key: row for row in started.created_steps})
    changes = evaluate(plan, run, snapshot, [Started({})], 1)
    assert isinstance(changes, IterationChanges)
    assert changes.is_empty
    assert run.alarm == "the run waits, but nothing is outstanding"


def _keys() -> list[str]:
    run = run_of(block(step("s", "E", x=1)))
    return list(run.rows)
