"""The event that a step waits for follows from its rows alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC

import pytest

from flowengine.engine.presentation import clock, outstanding
from flowengine.engine.waits_for import WaitKind, WaitsFor, first_of, step_waits_for, words
from flowengine.evaluator.states import StepState, TaskState
from flowengine.program.standard import SLEEP, WAIT_FOR

NOW = 1_700_000_000_000


@dataclass(frozen=True)
class Waiting:
    state: str = StepState.EVENT_TRANSMIT
    facet: str = "shop.charge"
    updated: int = NOW - 5_000
    task_state: str | None = TaskState.PENDING
    task_list: str | None = "io"
    task_due: int | None = NOW - 4_000
    circuit: str = ""
    blocked_on: str | None = None
    parked_until: int | None = None
    retry_at: int | None = None
    child_run: str | None = None
    wakes_at: int | None = None
    question: str = ""


STEP = Waiting()


@pytest.mark.parametrize(
    ("step", "kind", "subject", "until"),
    [
        (STEP, WaitKind.WORKER, "io", None),
        (replace(STEP, retry_at=NOW + 9), WaitKind.RETRY, "", NOW + 9),
        (replace(STEP, retry_at=NOW - 9), WaitKind.WORKER, "io", None),
        (
            replace(STEP, circuit="bank", parked_until=NOW + 1),
            WaitKind.CIRCUIT,
            "bank",
            NOW + 1,
        ),
        (replace(STEP, circuit="bank", parked_until=NOW), WaitKind.WORKER, "io", None),
        (
            replace(STEP, task_state=TaskState.IGNORED, child_run="c" * 32),
            WaitKind.CHILD_RUN,
            "c" * 32,
            None,
        ),
        (replace(STEP, task_state="held"), WaitKind.HOLD, "", None),
        (
            replace(STEP, task_state="waiting", blocked_on="limit:customer:7"),
            WaitKind.LIMIT,
            "customer:7",
            None,
        ),
        (
            replace(STEP, task_state="waiting", blocked_on="rate:mailgun", task_due=NOW + 60),
            WaitKind.RATE,
            "mailgun",
            NOW + 60,
        ),
        (
            replace(STEP, facet=SLEEP, task_state=None, wakes_at=NOW + 5),
            WaitKind.TIME,
            "",
            NOW + 5,
        ),
        (
            replace(STEP, facet=WAIT_FOR, task_state=None, question="approval"),
            WaitKind.ANSWER,
            "approval",
            None,
        ),
        (replace(STEP, state=StepState.CREATED, task_state=None), WaitKind.STEPS, "", None),
        (replace(STEP, state=StepState.BLOCKS_CONTINUE), WaitKind.STEPS, "", None),
    ],
)
def test_each_wait_has_a_kind_a_subject_and_an_end(
    step: Waiting, kind: WaitKind, subject: str, until: int | None
) -> None:
    wait = step_waits_for(step, NOW)
    assert wait is not None
    assert (wait.kind, wait.subject, wait.until) == (kind, subject, until)
    assert wait.since <= NOW


@pytest.mark.parametrize("state", sorted(StepState.FINAL))
def test_an_ended_step_waits_for_nothing(state: str) -> None:
    assert step_waits_for(replace(STEP, state=state), NOW) is None


def test_a_running_step_waits_for_nothing() -> None:
    assert step_waits_for(replace(STEP, task_state=TaskState.RUNNING), NOW) is None


def test_of_several_waits_of_a_run_a_person_comes_before_a_clock() -> None:
    waits = [
        WaitsFor(WaitKind.TIME, "", NOW, NOW + 1),
        WaitsFor(WaitKind.ANSWER, "b", NOW, NOW + 9),
        WaitsFor(WaitKind.ANSWER, "a", NOW, NOW + 8),
    ]
    assert first_of(waits) == waits[2]
    assert first_of([]) is None


def test_every_kind_has_words() -> None:
    utc = clock(NOW, zone=UTC)
    for kind in WaitKind:
        assert words(WaitsFor(kind, "subject", NOW, NOW + 1), utc)
    wait = WaitsFor(WaitKind.ANSWER, "approval", NOW, NOW + 3 * 86_400_000)
    assert words(wait, utc) == "waits for the answer 'approval' until 2023-11-17 22:13:20 UTC"
    near = replace(wait, kind=WaitKind.TIME, until=NOW + 60_000)
    assert words(near, utc) == "sleeps until 22:14:20 UTC"
    assert outstanding(3, None, NOW, near, zone=UTC) == (
        "sleeps until 22:14:20 UTC; 3 steps outstanding"
    )
