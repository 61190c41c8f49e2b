"""The table of claimed tasks, with a moved clock."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)

from flowengine.engine.in_flight import InFlightMarkers
from flowengine.errors import IllegalTransition
from flowengine.evaluator.triggers import Succeeded
from flowengine.worker.batch import Batch
from flowengine.worker.claimed_tasks import (
    CLAIM_TRANSITIONS,
    ClaimedTask,
    ClaimEvent,
    ClaimKey,
    ClaimState,
)
from tests.unit.worker.claims import MovedClock, table, task

DONE = Succeeded({"result": 1})


def test_the_same_task_under_two_leases_has_two_entries() -> None:
    claimed = table()
    first = task(lease=1)
    (released,) = claimed.claim([first])
    (again,) = claimed.claim([task(uuid_=first.uuid, lease=3)])
    claimed.close(ClaimEvent.RELEASE, [released])
    assert claimed.in_states(ClaimState.CLAIMED) == [again]


def test_a_claim_response_that_arrives_after_the_task_was_disowned_is_ignored() -> None:
    claimed = table()
    late = task(lease=1)
    assert claimed.disown_unknown({(late.uuid, 1)}) == {(late.uuid, 1)}
    assert claimed.claim([late]) == []
    assert claimed.in_states(*ClaimState.ACTIVE) == []


def test_a_disowned_task_is_forgotten_after_ten_minutes_unless_the_database_lists_it() -> None:
    clock = MovedClock()
    claimed = table(clock)
    gone, listed = ("a" * 32, 1), ("b" * 32, 1)
    claimed.disown_unknown({gone, listed})
    clock.now = 601.0
    assert claimed.disown_unknown({listed}) == {listed}
    assert [entry.key for entry in claimed.in_states(ClaimState.DISOWNED)] == [listed]


def test_tasks_that_the_end_of_the_process_has_released_leave_their_batch() -> None:
    claimed = table()
    entries = claimed.claim([task(), task()])
    batch = Batch(claimed, entries)
    claimed.close(ClaimEvent.RELEASE, entries)
    assert batch.next() is None
    batch.add(entries)
    assert batch.take_unstarted() == []


def test_a_task_that_could_not_be_released_is_unknown_to_the_database_query() -> None:
    """It is found again for as long as the database lists it."""
    claimed = table()
    ours, active = claimed.claim([task(), task()])
    claimed.close(ClaimEvent.DISOWN, [ours])
    held = {ours.key, active.key}
    assert claimed.disown_unknown(held) == claimed.disown_unknown(held) == {ours.key}


def test_a_spooled_task_is_not_unknown_and_not_active() -> None:
    claimed = table()
    (entry,) = claimed.claim([task()])
    claimed.start(entry)
    claimed.finish(entry, DONE)
    claimed.spool(entry)
    assert claimed.disown_unknown({entry.key}) == set()
    assert claimed.wait_until_idle(0)
    claimed.close(ClaimEvent.DELIVER, [entry])
    assert claimed.in_states(ClaimState.SPOOLED) == []


def test_the_outcome_of_a_task_that_was_released_meanwhile_is_ignored() -> None:
    claimed = table()
    (entry,) = claimed.claim([task()])
    claimed.start(entry)
    claimed.close(ClaimEvent.RELEASE, [entry])
    assert not claimed.finish(entry, DONE)


def test_a_released_task_cannot_be_started() -> None:
    claimed = table()
    (entry,) = claimed.claim([task()])
    claimed.close(ClaimEvent.RELEASE, [entry])
    with pytest.raises(IllegalTransition):
        claimed.start(entry)


def test_waiting_ends_when_the_last_task_is_reported() -> None:
    claimed = table()
    (entry,) = claimed.claim([task()])
    claimed.start(entry)
    assert not claimed.wait_until_idle(0)
    claimed.finish(entry, DONE)
    report = threading.Timer(0.01, claimed.close, (ClaimEvent.REPORT, [entry]))
    report.start()
    assert claimed.wait_until_idle(30)
    report.join()


# --- the order of a batch ---


def test_a_batch_is_stuck_when_an_unstarted_task_waits_for_too_long() -> None:
    clock = MovedClock()
    claimed = table(clock)
    batch = Batch(claimed, claimed.claim([task(), task()]))
    first = batch.next()
    assert first is not None
    clock.now = 1.0
    assert not batch.is_stuck(1.0)
    clock.now = 1.1
    assert batch.is_stuck(1.0)
    assert len(batch.take_unstarted()) == 1
    assert not batch.is_stuck(1.0), "a running task that is alone delays no other"


def test_a_batch_is_stuck_when_a_finished_task_waits_for_too_long() -> None:
    clock = MovedClock()
    claimed = table(clock)
    batch = Batch(claimed, claimed.claim([task()]))
    entry = batch.next()
    assert entry is not None
    claimed.start(entry)
    clock.now = 5.0
    batch.finish(entry, DONE)
    assert not batch.is_stuck(1.0), "it waits since it is finished, not since it was claimed"
    clock.now = 6.1
    assert batch.is_stuck(1.0)
    assert batch.take_finished() == [entry]
    clock.now = 7.0
    batch.add(claimed.claim([task()]))
    assert not batch.is_stuck(1.0), "a continuation waits since it was claimed"


def test_a_batch_gives_up_the_unstarted_tasks_of_one_circuit() -> None:
    claimed = table()
    batch = Batch(claimed, claimed.claim([task(circuit=name) for name in ("a", "b", "a")]))
    assert [entry.task.circuit for entry in batch.take_circuit("a")] == ["a", "a"]
    assert [entry.task.circuit for entry in batch.take_unstarted()] == ["b"]


# --- in-flight markers ---


def test_a_task_is_marked_from_its_start_until_its_final_state(tmp_path: Path) -> None:
    claimed = table(directory=tmp_path)
    read = InFlightMarkers(tmp_path, "b" * 32)
    entries = claimed.claim([task() for _ in range(3)])
    ids = [entry.task.uuid for entry in entries]

    def marked() -> tuple[set[str] | None, set[str]]:
        return read.of(os.getpid()), read.running(os.getpid())

    for entry in entries[:2]:
        claimed.start(entry)
    assert marked() == (set(ids[:2]), set(ids[:2]))
    for entry in entries[:2]:
        claimed.finish(entry, DONE)
    assert marked() == (set(ids[:2]), set()), "finished, and not reported"
    claimed.spool(entries[1])
    claimed.close(ClaimEvent.REPORT, entries[:1])
    assert marked() == ({ids[1]}, set())
    claimed.close(ClaimEvent.DELIVER, entries[1:2])
    assert marked() == (set(), set())


class Claims(RuleBasedStateMachine):
    """Random events on a table of claimed tasks, beside a plain model of the database."""

    entries = Bundle("entries")

    def __init__(self) -> None:
        super().__init__()
        self.clock = MovedClock()
        self.claimed = table(self.clock)
        self.held: set[ClaimKey] = set()  #: as the database says
        self.reported: set[ClaimKey] = set()
        self.spooled: set[ClaimKey] = set()

    @rule(target=entries)
    def claim(self) -> ClaimedTask:
        (entry,) = self.claimed.claim([task(lease=1)])
        self.held.add(entry.key)
        return entry

    @rule()
    def lose_a_claim_response(self) -> None:
        self.held.add((task().uuid, 1))

    @rule(seconds=st.floats(0, 100))
    def move_clock(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(entry=entries)
    def start(self, entry: ClaimedTask) -> None:
        self.attempt(ClaimEvent.START, entry, lambda: self.claimed.start(entry))

    @rule(entry=entries)
    def finish(self, entry: ClaimedTask) -> None:
        self.attempt(ClaimEvent.FINISH, entry, lambda: self.claimed.finish(entry, DONE))

    @rule(entry=entries)
    def spool(self, entry: ClaimedTask) -> None:
        self.attempt(ClaimEvent.SPOOL, entry, lambda: self.claimed.spool(entry))
        if entry.state == ClaimState.SPOOLED:
            self.spooled.add(entry.key)

    @rule(
        entry=entries,
        event=st.sampled_from(
            [ClaimEvent.REPORT, ClaimEvent.RELEASE, ClaimEvent.PARK, ClaimEvent.DELIVER]
        ),
    )
    def close(self, entry: ClaimedTask, event: str) -> None:
        if self.attempt(event, entry, lambda: self.claimed.close(event, [entry])):
            self.held.discard(entry.key)
            self.spooled.discard(entry.key)
            if event in (ClaimEvent.REPORT, ClaimEvent.DELIVER):
                self.reported.add(entry.key)

    @rule(entry=entries)
    def disown(self, entry: ClaimedTask) -> None:
        if self.attempt(
            ClaimEvent.DISOWN, entry, lambda: self.claimed.close(ClaimEvent.DISOWN, [entry])
        ):
            self.spooled.discard(entry.key)

    @precondition(lambda self: self.held)
    @rule()
    def reconcile(self) -> None:
        unknown = self.claimed.disown_unknown(self.held)
        assert not unknown & self.spooled, "a spooled task stays claimed"
        assert not unknown & self.reported
        self.held -= unknown

    @rule(entry=consumes(entries))
    def forget(self, entry: ClaimedTask) -> None:
        pass

    def attempt(self, event: str, entry: ClaimedTask, act: object) -> bool:
        """Do it exactly if the table allows it."""
        before = entry.state
        if event in CLAIM_TRANSITIONS[before]:
            act()  # type: ignore[operator]
            assert before not in ClaimState.FINAL or entry.state == before
            return True
        with pytest.raises(IllegalTransition):
            act()  # type: ignore[operator]
        assert entry.state == before
        return False

    @invariant()
    def active_and_spooled_tasks_stay_claimed(self) -> None:
        ours = self.claimed.in_states(*ClaimState.ACTIVE, ClaimState.SPOOLED)
        assert {entry.key for entry in ours} <= self.held
        assert self.spooled <= self.held

    @invariant()
    def only_disowned_tasks_are_remembered_at_their_end(self) -> None:
        assert not self.claimed.in_states(*ClaimState.FINAL - {ClaimState.DISOWNED})


Claims.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestClaims = Claims.TestCase
