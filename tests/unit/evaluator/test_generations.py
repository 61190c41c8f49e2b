"""A retry runs the chosen steps again, keeps all others, and ends as the run would have ended.

`MemoryRun` checks after every commit that the counters of all rows match the rows.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, example, given, note, reject, settings
from hypothesis import strategies as st

from flowengine.evaluator import RunState, StepState, TaskDefinition
from flowengine.evaluator.states import ObjectType
from flowengine.evaluator.triggers import Failed, Outcome, Succeeded
from tests.builders import (
    after,
    always,
    block,
    case,
    catching,
    default,
    event,
    facet,
    of,
    op,
    program,
    step,
    to,
    when,
    workflow,
)
from tests.builders import given as value
from tests.examples_drawn import AT_RANDOM
from tests.unit.evaluator.in_memory_run import MemoryRun, comparable
from tests.unit.evaluator.programs_strategy import Case, case_of, cases
from tests.unit.evaluator.test_laws import MOST_ROWS, limits, seeds

laws = settings(
    max_examples=200 if AT_RANDOM else 12,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
E = event("E", "x", "y")


class Answers:
    """Answers every task by its arguments, except for the paths that fail; counts executions."""

    def __init__(self, *failing: str) -> None:
        self.failing, self.counts = set(failing), Counter[str]()

    def __call__(self, task: TaskDefinition) -> Outcome:
        self.counts[task.step_path] += 1
        if task.step_path in self.failing:
            return Failed({"type": "Oops", "message": "broken"}, retry=False)
        return Succeeded({"y": (task.data or {}).get("x")})

    def heal(self) -> None:
        self.failing.clear()
        self.counts.clear()


def chain() -> MemoryRun:
    return MemoryRun(
        program(
            E,
            workflow(
                "W",
                "n",
                "out",
                block(
                    step("a", "E", x=value("n")),
                    step("b", "E", x=of("a.y")),
                    step("c", "E", x=of("b.y")),
                    step("other", "E", x=7),
                    yields=[to("W", out=of("c.y"))],
                ),
            ),
        ),
        {"n": 1},
    )


def test_retry_runs_the_failed_step_and_the_skipped_ones_and_keeps_the_others() -> None:
    run, answer = chain(), Answers("W.b")
    run.answer_all(answer)
    assert run.view.state == RunState.FAILED
    answer.heal()
    assert run.ask("retry") == ""
    assert run.view.error is None
    run.answer_all(answer)
    assert run.view.state == RunState.COMPLETED
    assert run.outputs == {"out": 1}
    assert answer.counts == {"W.b": 1, "W.c": 1}


def test_retry_from_a_step_runs_exactly_the_steps_that_depend_on_it() -> None:
    run, answer = chain(), Answers()
    run.answer_all(answer)
    answer.heal()
    assert run.ask("retry", from_step="W.b") == ""
    run.answer_all(answer)
    assert run.outputs == {"out": 1}
    assert answer.counts == {"W.b": 1, "W.c": 1}


def test_a_late_report_of_a_superseded_step_changes_nothing() -> None:
    run = chain()
    run.succeed("W.a", y=1)
    old = run.task("W.b")
    assert run.ask("retry", from_step="W.a") == ""
    assert old.state == "canceled"
    assert run.consume_inbox(run.ended(old, Succeeded({"y": 99}))).is_empty
    answer = Answers()
    run.answer_all(answer)
    assert run.outputs == {"out": 1}
    assert answer.counts == {"W.a": 1, "W.b": 1, "W.c": 1, "W.other": 1}


def test_a_retry_from_a_step_leaves_running_steps_alone() -> None:
    run, answer = chain(), Answers()
    run.succeed("W.a", y=1)
    other = run.task("W.other")
    assert run.ask("retry", from_step="W.a") == ""
    assert run.task("W.other") is other
    assert other.state == "pending"
    run.answer_all(answer)
    assert run.view.state == RunState.COMPLETED


def test_a_completed_run_is_not_retried_without_a_step() -> None:
    run = chain()
    run.answer_all(Answers())
    assert "the run has completed" in run.ask("retry")
    assert run.view.generation == 0


def test_a_running_run_is_not_retried_without_a_step() -> None:
    assert "the run has not ended" in chain().ask("retry")


def test_an_unknown_step_is_refused_with_a_similar_one() -> None:
    run = chain()
    run.succeed("W.a", y=1)
    assert run.ask("retry", from_step="W.othr") == (
        "the run has no step 'W.othr'; did you mean 'W.other'?"
    )


def test_in_a_nested_facet_only_the_failed_step_runs_again() -> None:
    inner = facet(
        "F",
        "x",
        "y",
        block(
            step("p", "E", x=value("x")),
            step("q", "E", x=of("p.y")),
            yields=[to("F", y=of("q.y"))],
        ),
    )
    run = MemoryRun(
        program(
            E,
            inner,
            workflow(
                "W",
                "n",
                "out",
                block(
                    step("f", "F", x=value("n")),
                    step("g", "F", x=of("f.y")),
                    yields=[to("W", out=of("g.y"))],
                ),
            ),
        ),
        {"n": 3},
    )
    answer = Answers("W.f.q")
    run.answer_all(answer)
    answer.heal()
    run.ask("retry")
    run.answer_all(answer)
    assert run.outputs == {"out": 3}
    assert answer.counts == {"W.f.q": 1, "W.g.p": 1, "W.g.q": 1}


def loop(*, limit: int | None = None) -> MemoryRun:
    clause = {} if limit is None else {"limit": limit}
    return MemoryRun(
        program(
            event("L", "", "xs"),
            E,
            workflow(
                "W",
                "",
                "out",
                block(step("l", "L")),
                block(
                    step("e", "E", x=value("x")),
                    step("f", "E", x=of("e.y")),
                    foreach=("x", of("l.xs")),
                    yields=[to("W", out=of("f.y"))],
                    **clause,
                ),
            ),
        )
    )


def test_a_list_that_became_shorter_leaves_no_old_items() -> None:
    run = MemoryRun(
        program(
            event("L", "", "xs"),
            E,
            workflow(
                "W",
                "",
                "out",
                block(
                    step("l", "L"),
                    step(
                        "all",
                        "Each",
                        xs=of("l.xs"),
                    ),
                    yields=[to("W", out=of("all.out"))],
                ),
            ),
            facet(
                "Each",
                "xs",
                "out",
                block(
                    step("e", "E", x=value("x")),
                    step("f", "E", x=of("e.y")),
                    foreach=("x", value("xs")),
                    yields=[to("Each", out=op(of("f.y"), "+", 0))],
                ),
            ),
        )
    )
    answer = Answers()
    run.succeed("W.l", xs=[1, 2, 3])
    run.answer_all(answer)
    assert run.view.state == RunState.COMPLETED
    run.ask("retry", from_step="W.l")
    run.succeed("W.l", xs=[5])
    answer.heal()
    run.answer_all(answer)
    assert run.outputs == {"out": 5}
    assert answer.counts == {"W.all[0].e": 1, "W.all[0].f": 1}
    items = [row for row in run.rows.values() if row["object_type"] == ObjectType.ITEM]
    assert len(items) == 1


def looped(count: int, *, limited: int | None = None, single: bool = False) -> MemoryRun:
    statements = [step("e", "E", x=value("x"))]
    if not single:
        statements.append(step("f", "E", x=of("e.y")))
    last = "e.y" if single else "f.y"
    clause = {"limit": limited} if limited else {}
    return MemoryRun(
        program(
            E,
            workflow(
                "W",
                "xs",
                "out",
                block(
                    *statements,
                    foreach=("x", value("xs")),
                    yields=[to("W", out=of(last))],
                    **clause,
                ),
            ),
        ),
        {"xs": list(range(count))},
    )


def test_one_item_of_a_foreach_is_retried_alone() -> None:
    for single in (False, True):
        run, answer = looped(250, single=single), Answers()
        run.answer_all(answer)
        answer.heal()
        assert run.ask("retry", from_step="W[120]") == ""
        run.answer_all(answer)
        assert run.view.state == RunState.COMPLETED
        expected = {"W[120].e": 1} if single else {"W[120].e": 1, "W[120].f": 1}
        assert answer.counts == expected


def test_the_failed_items_of_a_limited_foreach_run_again() -> None:
    run, answer = looped(20, limited=3), Answers("W[4].f", "W[17].e")
    run.answer_all(answer)
    assert run.view.state == RunState.FAILED
    answer.heal()
    run.ask("retry")
    run.answer_all(answer)
    assert run.view.state == RunState.COMPLETED
    assert answer.counts == {"W[4].f": 1, "W[17].e": 1, "W[17].f": 1}


def test_a_catch_runs_again_only_with_the_step_that_it_belongs_to() -> None:
    run = MemoryRun(
        program(
            E,
            workflow(
                "W",
                "",
                "out",
                block(
                    catching(
                        step("a", "E", x=1), step("h", "E", x=2), yields=[to("E", y=of("h.y"))]
                    ),
                    step("b", "E", x=of("a.y")),
                    yields=[to("W", out=of("b.y"))],
                ),
            ),
        )
    )
    answer = Answers("W.a")
    run.answer_all(answer)
    assert run.outputs == {"out": 2}
    answer.counts.clear()
    assert run.ask("retry", from_step="W.a[catch].h") == ""
    run.answer_all(answer)
    assert run.outputs == {"out": 2}
    assert answer.counts == {"W.a[catch].h": 1, "W.b": 1}
    answer.heal()
    run.ask("retry", from_step="W.a")
    run.answer_all(answer)
    assert run.outputs == {"out": 1}
    assert answer.counts == {"W.a": 1, "W.b": 1}


def test_only_the_failed_always_block_runs_again() -> None:
    run = MemoryRun(
        program(
            E,
            workflow(
                "W",
                "",
                "out",
                block(
                    always(step("a", "E", x=1), step("z", "E", x=2)),
                    yields=[to("W", out=of("a.y"))],
                ),
            ),
        )
    )
    answer = Answers("W.a[always].z")
    run.answer_all(answer)
    assert run.view.state == RunState.FAILED
    answer.heal()
    run.ask("retry")
    run.answer_all(answer)
    assert run.outputs == {"out": 1}
    assert answer.counts == {"W.a[always].z": 1}


def test_the_body_of_an_event_is_retried_without_its_event() -> None:
    run = MemoryRun(
        program(
            E,
            workflow(
                "W",
                "",
                "out",
                block(
                    step(
                        "a",
                        "E",
                        block(step("in", "E", x=of("a.y")), yields=[to("E", y=of("in.y"))]),
                        x=1,
                    ),
                    yields=[to("W", out=of("a.y"))],
                ),
            ),
        )
    )
    answer = Answers("W.a.in")
    run.answer_all(answer)
    answer.heal()
    run.ask("retry")
    run.answer_all(answer)
    assert answer.counts == {"W.a.in": 1}
    assert run.outputs == {"out": 1}
    answer.heal()
    run.ask("retry", from_step="W.a.in")
    run.answer_all(answer)
    assert answer.counts == {"W.a.in": 1}
    assert run.outputs == {"out": 1}


def test_another_case_is_taken_if_the_condition_has_changed() -> None:
    run = MemoryRun(
        program(
            E,
            workflow(
                "W",
                "",
                "out",
                block(
                    step("a", "E", x=1),
                    step("w", "F", x=of("a.y")),
                    yields=[to("W", out=of("w.y"))],
                ),
            ),
            facet(
                "F",
                "x",
                "y",
                when(
                    case(
                        op(value("x"), ">", 5),
                        step("big", "E", x=1),
                        yields=[to("F", y=of("big.y"))],
                    ),
                    default(step("small", "E", x=2), yields=[to("F", y=of("small.y"))]),
                ),
            ),
        )
    )
    answer = Answers()
    run.answer_all(answer)
    assert run.outputs == {"out": 2}
    run.ask("retry", from_step="W.a")
    run.succeed("W.a", y=10)
    answer.heal()
    run.answer_all(answer)
    assert run.outputs == {"out": 1}
    assert answer.counts == {"W.w[case-0].big": 1}


# --- by hand ---


def test_a_failed_step_is_completed_by_hand_and_what_was_skipped_runs() -> None:
    run, answer = chain(), Answers("W.b")
    run.answer_all(answer)
    answer.heal()
    assert run.ask("complete", step="W.b", result={"y": 5}) == ""
    run.answer_all(answer)
    assert run.outputs == {"out": 5}
    assert answer.counts == {"W.c": 1}


def test_a_waiting_step_is_completed_by_hand_and_its_task_stopped() -> None:
    run = chain()
    task = run.task("W.a")
    assert run.ask("complete", step="W.a", result={"y": 4}) == ""
    assert task.state == "canceled"
    run.answer_all(Answers())
    assert run.outputs == {"out": 4}


def test_the_run_goes_on_without_a_skipped_step_and_the_steps_that_need_it() -> None:
    document = program(
        E,
        workflow(
            "W",
            "",
            "out",
            block(
                step("a", "E", x=1),
                step("b", "E", x=of("a.y")),
                after(step("c", "E", x=3), {"step": "a", "on": "ended"}),
                yields=[to("W", out=of("c.y"))],
            ),
        ),
    )
    for fails_first in (False, True):
        run, answer = MemoryRun(document), Answers("W.a")
        if fails_first:
            run.answer_all(answer)
            assert run.view.state == RunState.FAILED
        answer.heal()
        assert run.ask("skip", step="W.a") == ""
        run.answer_all(answer)
        assert run.view.state == RunState.COMPLETED
        assert run.outputs == {"out": 3}
        assert answer.counts == ({} if fails_first else {"W.c": 1})
        assert run.states()["W.b"] == "Skipped"
        assert run.step("W.a").error == {
            "type": "SkippedByHand",
            "message": "skipped by person:eva: because",
            "path": "W.a",
        }


@pytest.mark.parametrize("is_created_later", [False, True])
def test_a_kept_step_does_not_let_a_renewed_one_go_on_before_those_that_are_retried(
    is_created_later: bool,
) -> None:
    first, second, third = ({"step": name, "on": "ended"} for name in ("a", "b", "kept"))
    kept = step("kept", "E", x=1)
    body = block(step("done", "E", x=4), step("failed", "E", x=5))
    document = program(
        E,
        workflow(
            "W",
            "",
            "",
            block(
                step("a", "E", x=2),
                step("b", "E", x=3),
                after(kept, first) if is_created_later else kept,
                after(step("late", "E", body, x=3), first, second, third),
            ),
        ),
    )
    run, answer = MemoryRun(document), Answers("W.a", "W.b", "W.late.failed")
    run.answer_all(answer)
    answer.heal()
    assert run.ask("retry") == ""
    run.succeed("W.a", y=1)
    assert "W.late.failed" not in run.states(), "W.b has not ended"
    run.answer_all(answer)
    assert run.view.state == RunState.COMPLETED
    assert answer.counts == {"W.b": 1, "W.late.failed": 1}


def test_only_a_step_that_waits_or_failed_is_ended_by_hand() -> None:
    run = chain()
    run.succeed("W.a", y=1)
    assert "has completed" in run.ask("skip", step="W.a")
    assert "no step 'W.x'" in run.ask("complete", step="W.x", result={})
    assert "W is no step" in run.ask("skip", step="W")
    answer = Answers("W.b")
    run.answer_all(answer)
    assert "was skipped because another step failed" in run.ask("skip", step="W.c")


# --- random programs ---


def finish(run: MemoryRun, drawn: Case, order: Random, most: int = 10_000) -> None:
    """Answer tasks in any order until the run ends, or `most` were answered."""
    for _ in range(most):
        open_tasks = run.outstanding()
        if not open_tasks:
            return
        if len(run.rows) > MOST_ROWS:
            reject()
        task = order.choice(open_tasks)
        outcome = drawn.answer(task)
        assert outcome is not None
        run.report(task, outcome)


def steps_of(run: MemoryRun) -> list[str]:
    """The paths of steps that have begun."""
    return [
        row["path"]
        for row in run.rows.values()
        if row["object_type"] in ObjectType.STEPS and row["state"] != StepState.CREATED
    ]


@laws
@given(cases(), seeds, st.booleans())
@example(case_of(seed=65, size=6, failing=0, silent=0), 65, True)  # in a block that has not gone on
@example(case_of(seed=5066, size=3, failing=20, silent=0), 77, True)  # two catches
@example(case_of(seed=30109, size=4, failing=20, silent=0), 59, True)  # a skipped step
@example(case_of(seed=11902, size=6, failing=20, silent=0), 75, False)  # after a catch
@example(case_of(seed=12061, size=5, failing=20, silent=0), 36, True)  # yields to a mixin
def test_a_retry_from_any_step_ends_as_the_run_without_it(
    drawn: Case, seed: int, is_small: bool
) -> None:
    answered = Case(drawn.document, drawn.inputs, drawn.seed, drawn.failing, silent=0)
    order = Random(seed)
    expected = MemoryRun(answered.document, answered.inputs)
    expected.settle()
    finish(expected, answered, order)
    small = {"max_commit_steps": 3} if is_small else {}
    with limits(portion=2 if is_small else 100, inline=8192):
        run = MemoryRun(answered.document, answered.inputs, forgetful=seed % 2 == 0, **small)
        run.settle()
        for _ in range(3):
            finish(run, answered, order, order.choice([0, 1, 3, 10_000]))
            if paths := steps_of(run):
                path = order.choice(paths)
                note(f"{run.view.state}: retry from {path}: {run.states()}")
                assert run.ask("retry", from_step=path) == ""
        finish(run, answered, order)
    assert comparable(run) == comparable(expected)


@laws
@given(cases(), seeds)
@example(case_of(seed=64578, size=6, failing=20, silent=0), 0)  # a kept step behind a retried one
@example(case_of(seed=2243373, size=6, failing=20, silent=0), 0)  # a renewed step behind one
def test_a_retry_of_failed_steps_ends_like_the_first_time_if_they_fail_again(
    drawn: Case, seed: int
) -> None:
    answered = Case(drawn.document, drawn.inputs, drawn.seed, drawn.failing, silent=0)
    run, order = MemoryRun(answered.document, answered.inputs), Random(seed)
    run.settle()
    finish(run, answered, order)
    if run.view.state != RunState.FAILED:
        reject()
    before, completed = comparable(run), completed_ids(run)
    assert run.ask("retry") == ""
    finish(run, answered, order)
    assert comparable(run) == before
    assert completed <= completed_ids(run), "a completed event was run again"


def completed_ids(run: MemoryRun) -> set[str]:
    """The ids of completed events that no handler of a failure belongs to."""
    return {
        row["id"]
        for row in run.rows.values()
        if row["state"] == StepState.COMPLETE
        and "[catch" not in row["path"]
        and "[always" not in row["path"]
        and row["id"] in {task.step_id for task in run.tasks.values()}
    }
