"""Invariants of the evaluator, checked with random programs.

`MemoryRun` checks after every commit that no final row has changed, that every counter matches
the rows, that a waiting run has something outstanding, and that a completed run has completed
everything. These tests run each program in several ways and compare the final states.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from unittest import mock

from hypothesis import HealthCheck, example, given, note, reject, settings
from hypothesis import strategies as st

from flowengine.evaluator import RunState, StepState, TaskDefinition, working_set
from flowengine.evaluator.triggers import Failed, Lost, Outcome, Succeeded
from flowengine.store import codec
from tests.examples_drawn import AT_RANDOM
from tests.unit.evaluator.in_memory_run import MemoryRun, comparable
from tests.unit.evaluator.programs_strategy import Case, case_of, cases

laws = settings(
    max_examples=400 if AT_RANDOM else 20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
MOST_ROWS = 250
seeds = st.integers(0, 2**16)
Report = tuple[TaskDefinition, Outcome]


@contextmanager
def limits(*, portion: int, inline: int) -> Iterator[None]:
    """Small portions and small inline values, so that a small program meets the limits too."""
    with (
        mock.patch.object(working_set, "PORTION", portion),
        mock.patch.object(codec, "INLINE_BYTES", inline),
    ):
        yield


def play(
    case: Case,
    seed: int,
    *,
    forgetful: bool = True,
    doubled: bool = False,
    batches: bool = True,
    make: type[MemoryRun] = MemoryRun,
    **settings: int,
) -> MemoryRun:
    """Run a case to its end, or until only unanswered tasks are left."""
    run = make(case.document, case.inputs, forgetful=forgetful, **settings)
    order = Random(seed)
    if order.random() < 0.5:
        run.settle()
    taken: list[Report] = []
    silent: set[str] = set()
    while True:
        if len(run.rows) > MOST_ROWS:
            reject()  # foreach in foreach in foreach: nothing new, and much of it
        outstanding = [task for task in run.outstanding() if task.uuid not in silent]
        if not outstanding:
            # Items that are not expanded yet may bring more.
            if not run.facts:
                return run
            run.settle()
            continue
        size = min(order.choice([1, 1, 1, 2, 5]) if batches else 1, len(outstanding))
        reports: list[Report] = []
        for task in order.sample(outstanding, size):
            outcome = case.answer(task)
            if outcome is None:
                silent.add(task.uuid)
            else:
                reports.append((task, outcome))
        if reports:
            run.report_all(reports)
            taken += reports
        while doubled and taken and order.random() < 0.4:
            deliver_again(run, order.choice(taken), order)


def deliver_again(run: MemoryRun, report: Report, order: Random) -> None:
    """Report the same task again, with the same or other content: it changes nothing."""
    task, outcome = report
    before = len(run.tasks), comparable(run)
    if run.step(task.step_path).state == StepState.EVENT_TRANSMIT:
        # A further try is under way. Deciding the same again names the same task, which exists.
        changes = run.consume_inbox(run.ended(task, outcome))
        assert not changes.created_steps
        assert not changes.updated_steps
    else:
        others: list[Outcome] = [
            Succeeded({"late": 1}),
            Failed({"message": "late"}),
            Lost("late"),
        ]
        again = order.choice([outcome, *others])
        assert run.consume_inbox(run.ended(task, again)).is_empty
        assert run.consume_inbox(run.continued(task.step_path, later=1)).is_empty
        assert run.consume_inbox(run.failed(task.step_path, "later")).is_empty
    assert (len(run.tasks), comparable(run)) == before


@laws
@given(cases(), seeds, seeds)
def test_any_order_of_reports_ends_the_same(case: Case, one: int, other: int) -> None:
    first = comparable(play(case, one))
    with limits(portion=2, inline=8192):
        second = comparable(play(case, other, doubled=True, max_commit_steps=3))
    assert first == second


@laws
@given(cases(), seeds)
def test_applying_the_same_report_twice_is_idempotent(case: Case, seed: int) -> None:
    play(case, seed, doubled=True, batches=False)


# A foreach whose list had failed was counted down by steps that ended before it was skipped.
@laws
@example(case_of(seed=7071915, size=5, failing=20, silent=0), 0)
@given(cases(), seeds)
def test_dropping_the_cache_after_any_commit_changes_nothing(case: Case, seed: int) -> None:
    remembering = comparable(play(case, seed, forgetful=False))
    # Every value that is longer than a word is stored apart and read only when needed.
    with limits(portion=250, inline=6):
        forgetting = comparable(play(case, seed))
    assert remembering == forgetting


@laws
@given(cases(), seeds)
def test_when_everything_is_answered_the_run_is_over(case: Case, seed: int) -> None:
    answered = Case(case.document, case.inputs, case.seed, case.failing, silent=0)
    run = play(answered, seed)
    note(str(run.states()))
    assert run.view.state in RunState.FINAL
    assert not run.outstanding()
    assert (run.view.state == RunState.COMPLETED) == (run.states()["W"] == "Complete")
    if run.view.state == RunState.FAILED:
        assert run.view.error is not None
        assert run.outputs is None
        failed = [path for path, state in run.states().items() if state == "Error"]
        assert failed
