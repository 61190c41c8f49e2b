"""The machine of agents against a simple model: any order of answers, reports, stops and losses.

The machine is asked as the store asks it, also with answers and reports that are late, doubled or
of another turn. After each step the invariants of the protocol hold; their numbers are those of
`tests/integration/agents/laws`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowengine.evaluator.records import CLAIMS
from flowengine.turns.records import (
    CardType,
    Changes,
    Head,
    ModelAnswered,
    ModelFailed,
    Reported,
    Rules,
    Stopped,
)
from flowengine.turns.states import AfterExecution, HeadState, TaskStatus, TurnState, WaitState
from tests.examples_drawn import AT_RANDOM
from tests.unit.turns.played_agent import PlayedAgent, asked, submission
from tests.unit.turns.test_states import EDGES

statuses = st.sampled_from(TaskStatus.ALL)
calls = st.lists(
    st.builds(
        asked,
        st.sampled_from(["search", "refund", "translate"]),
        problem=st.sampled_from(["", "", "", "refused"]),
        after_execution=st.sampled_from(["suspend", "suspend", "terminate"]),
        timeout=st.sampled_from([None, 5_000, 50_000]),
        needs_approval=st.booleans(),
    ),
    min_size=1,
    max_size=3,
)


class AgentLaws(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.agent = PlayedAgent(Rules(max_steps=4, max_tokens=90, must_submit=True))
        self.before = replace(self.agent.head)
        self.epochs = [0]  #: of each dispatch
        self.said: list[str] = []  #: runs whose answer was heard
        self.number = 0
        self.attempt = 0

    # --- what happens ---

    @precondition(lambda self: self.agent.head.status == HeadState.IDLE and self.number < 5)
    @rule()
    def dispatch(self) -> None:
        self.number += 1
        self._took(self.agent.dispatch(f"turn{self.number}"))
        assert self.agent.head.epoch > self.epochs[-1]  # invariant 3
        self.epochs.append(self.agent.head.epoch)

    @precondition(lambda self: self.agent.head.run_id is not None)
    @rule(late=st.integers(0, 2), claim=st.integers(0, 2))
    def enter(self, late: int, claim: int) -> None:
        """A try enters; with `late` it is one that was thought to be lost."""
        self.attempt += 1
        attempt = max(1, self.attempt - late)
        head = self.agent.head
        has_entered = self.agent.enter(attempt, claim)
        assert has_entered == (attempt * CLAIMS + claim >= head.entered)
        is_recovery = head.entered and attempt > head.entered // CLAIMS
        assert self.agent.head.epoch - head.epoch == (1 if is_recovery else 0)

    @precondition(lambda self: self.agent.head.run_id and self.agent.head.entered)
    @rule(asked_for=calls)
    def ask_for_calls(self, asked_for: list[Any]) -> None:
        self._hear(self.agent.say(*asked_for))

    @precondition(lambda self: self.agent.head.run_id and self.agent.head.entered)
    @rule(with_sibling=st.booleans(), problem=st.sampled_from(["", "", "missing: a"]))
    def submit(self, with_sibling: bool, problem: str) -> None:
        given = [submission(("a", self.number), problem=problem)]
        given += [asked()] if with_sibling else []
        turn = self.agent.head.turn_id
        self._hear(self.agent.say(*given))
        if not with_sibling and not problem:
            assert turn is not None
            assert self.agent.deliveries[turn][0].status == TaskStatus.SUCCESS

    @precondition(lambda self: self.agent.head.run_id and self.agent.head.entered)
    @rule(problem=st.sampled_from(["", "answer_cut_off"]))
    def speak(self, problem: str) -> None:
        self._hear(self.agent.say(text="so", problem=problem))

    @precondition(lambda self: self.agent.head.run_id is not None)
    @rule(status=st.sampled_from([TaskStatus.FAILED, TaskStatus.CANCELED]))
    def fail(self, status: str) -> None:
        self._took(self.agent.fail(status=status))

    @precondition(lambda self: self.agent.open_calls())
    @rule(
        data=st.data(), status=statuses, override=st.sampled_from(["", "", "explode", "terminate"])
    )
    def report(self, data: st.DataObject, status: str, override: str) -> None:
        call = data.draw(st.sampled_from(self.agent.open_calls()))
        calls_before = len(self.agent.model_calls)
        changes = self.agent.report(call, status, after_execution=override)
        self._took(changes)
        assert changes is not None
        assert self.agent.calls[call.id].state == WaitState.APPLIED
        if self.agent.head.waiting:  # invariant 19: it goes on after the last one alone
            assert len(self.agent.model_calls) == calls_before

    @precondition(lambda self: self.agent.open_calls())
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.agent.open_calls()))
        self._took(self.agent.expire(call))
        assert self.agent.calls[call.id].state == WaitState.EXPIRED

    @precondition(lambda self: self.agent.head.turn_id)
    @rule()
    def stop(self) -> None:
        head = self.agent.head
        changes = self.agent.stop()
        self._took(changes)
        assert changes is not None
        assert self.agent.head.epoch == head.epoch + 1
        ended = {run_id for run_id in (head.run_id,) if run_id}
        ended |= {call.run_id for call in changes.ended if call.run_id}
        assert ended <= set(self.agent.canceled)

    @rule(milliseconds=st.integers(1, 60_000))
    def wait(self, milliseconds: int) -> None:
        self.agent.now += milliseconds

    # --- what comes too late, twice or to the wrong place ---

    @precondition(lambda self: self.said)
    @rule(data=st.data(), has_failed=st.booleans())
    def hear_again(self, data: st.DataObject, has_failed: bool) -> None:
        run_id = data.draw(st.sampled_from(self.said))
        failed = ModelFailed(run_id, "model_failed", "late")
        self._refuses(failed if has_failed else ModelAnswered(run_id, "late", {}))

    @precondition(lambda self: any(c.state != WaitState.WAITING for c in self.agent.calls.values()))
    @rule(data=st.data(), status=statuses, is_timeout=st.booleans())
    def report_again(self, data: st.DataObject, status: str, is_timeout: bool) -> None:
        ended = [c for c in self.agent.calls.values() if c.state != WaitState.WAITING]
        call = data.draw(st.sampled_from(ended))
        for turn in self.agent.turns.values():  # invariant 18: nor to another turn
            self._refuses(Reported(call.id, status, is_timeout=is_timeout), turn)

    @precondition(lambda self: self.agent.turns)
    @rule(data=st.data())
    def stop_an_ended_turn(self, data: st.DataObject) -> None:
        ended = [t for t in self.agent.turns.values() if t.state == TurnState.FINISHED]
        if ended:
            turn = data.draw(st.sampled_from(ended))
            self._refuses(Stopped("stopped", "late"), turn)

    # --- the model ---

    def _hear(self, changes: Changes | None) -> None:
        run_id = self.before.run_id or self.agent.model_calls[-1]
        self.said.append(run_id)
        self._took(changes)

    def _took(self, changes: Changes | None) -> None:
        assert changes is not None
        head = self.agent.head
        if head.run_id != self.before.run_id:
            self.attempt = 0
        self._check_step(self.before, head, changes)

    def _refuses(self, trigger: Any, turn: Any = None) -> None:
        """Invariant 6: nothing is written."""
        head, cards = self.agent.head, {t: list(c) for t, c in self.agent.cards.items()}
        assert self.agent.tell(trigger, turn) is None
        assert self.agent.head is head
        assert self.agent.cards == cards

    def _check_step(self, before: Head, head: Head, changes: Changes) -> None:
        if before.status != head.status or before.epoch != head.epoch:
            assert (before.status, head.status) in EDGES  # invariant 4
        turn_id = head.turn_id or before.turn_id
        assert turn_id is not None
        results = [c for c in changes.cards if c.type == CardType.TOOL_RESULT]
        asked_now = {c.tool_call_id for c in changes.cards if c.type == CardType.TOOL_CALL}
        waited = {c.id for c in changes.ended}
        started = {s.call.id for s in changes.started}
        # Each call is answered in the commit that refuses, applies or drops it.
        assert {c.tool_call_id for c in results} == (asked_now - started) | waited
        # Invariant 25: an end has a deliverable of its own, and one event for it.
        ends = [c for c in changes.cards if c.type == CardType.DELIVERABLE]
        tasks = [e for e in changes.events if e.kind == "task"]
        has_ended = head.status == HeadState.IDLE
        assert len(ends) == len(tasks) == has_ended == (changes.delivery is not None)
        if changes.delivery is not None:
            assert ends[0].id == changes.delivery.card_id == tasks[0].body["deliverable_card_id"]
            assert tasks[0].body["agent_turn_id"] == turn_id
            assert changes.model_call is None
        self.before = replace(head)

    # --- the laws ---

    @invariant()
    def an_idle_head_has_no_turn(self) -> None:
        head = self.agent.head
        assert (head.status == HeadState.IDLE) == (head.turn_id is None)  # 1
        if head.turn_id is None:
            assert (head.waiting, head.resume_deadline, head.run_id) == (0, None, None)
            assert (head.output_box_id, head.context_box_id) == (None, None)
            assert self.agent.open_calls() == []

    @invariant()
    def a_suspended_head_counts_its_open_calls(self) -> None:
        head, still_open = self.agent.head, self.agent.open_calls()
        assert head.waiting == len(still_open)  # 2
        assert (head.status == HeadState.SUSPENDED) == bool(still_open)
        deadlines = [call.deadline for call in still_open if call.deadline is not None]
        if still_open:
            assert head.resume_deadline == min(deadlines, default=None)  # 21
            assert all(c.deadline is not None or c.approval == "asked" for c in still_open)

    @invariant()
    def the_epoch_never_falls(self) -> None:
        assert self.agent.head.epoch >= self.epochs[-1]  # 3
        self.before = replace(self.agent.head)

    @invariant()
    def one_turn_is_active_and_the_others_have_delivered_once(self) -> None:
        for turn in self.agent.turns.values():
            deliveries = self.agent.deliveries[turn.id]
            is_active = turn.id == self.agent.head.turn_id
            assert len(deliveries) == (not is_active)  # 5, 7, 25, 26
            tasks = [e for e in self.agent.events if e.kind == "task"]
            ends = [e for e in tasks if e.body["agent_turn_id"] == turn.id]
            assert len(ends) == len(deliveries)

    @invariant()
    def each_call_has_one_result_and_ids_never_repeat(self) -> None:
        ids = [card.id for cards in self.agent.cards.values() for card in cards]
        assert len(ids) == len(set(ids))
        runs = self.agent.model_calls
        assert len(runs) == len(set(runs))
        for cards in self.agent.cards.values():
            results = [c.tool_call_id for c in cards if c.type == CardType.TOOL_RESULT]
            assert len(results) == len(set(results))  # 17, 23
            open_ids = {call.id for call in self.agent.open_calls()}
            asked_for = {c.tool_call_id for c in cards if c.type == CardType.TOOL_CALL}
            assert asked_for - set(results) <= open_ids

    @invariant()
    def a_turn_keeps_its_budget(self) -> None:
        for turn in self.agent.turns.values():
            assert turn.steps <= self.agent.rules.max_steps

    @invariant()
    def a_turn_that_a_call_has_ended_shows_it(self) -> None:
        for turn_id, deliveries in self.agent.deliveries.items():
            own = {c.tool_call_id for c in self.agent.cards[turn_id]}
            ending = [
                call
                for call in self.agent.calls.values()
                if call.id in own
                and call.effective == AfterExecution.TERMINATE
                and call.state in (WaitState.APPLIED, WaitState.EXPIRED)
            ]
            if ending and deliveries and deliveries[0].code in ("", "tool_ended_turn"):
                bad = [c.ending for c in ending if c.ending != TaskStatus.SUCCESS]
                assert deliveries[0].status in (bad or [TaskStatus.SUCCESS])  # 24


TestAgentLaws = AgentLaws.TestCase
TestAgentLaws.settings = settings(
    max_examples=1_500 if AT_RANDOM else 30, stateful_step_count=60 if AT_RANDOM else 30
)
