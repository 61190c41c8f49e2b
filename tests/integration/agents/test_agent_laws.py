"""Agents against a simple model: any order of messages, results, decisions, deaths and time.

Hypothesis draws what happens; the code and the database are real. After each commit the rows are
held against the laws of the protocol (`tests/integration/agents/laws`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from flowengine.agents.profiles import MODEL
from flowengine.errors import AgentBusy, CallRefused
from flowengine.store.agent_heads import AgentHeads
from flowengine.store.agent_inbox import Message
from flowengine.turns.records import Head
from flowengine.turns.states import HeadState, InboxState, MessageType, WaitState
from tests.examples_drawn import AT_RANDOM
from tests.integration.agents.clerks import search
from tests.integration.agents.laws.rows import Row
from tests.integration.agents.laws.table import AFTER_RECOVERY, AT_REST, LAWS, OF_TIME, sentences
from tests.integration.agents.laws.world import SCRIPTS, Killed, World, chief
from tests.servers import PostgresServer

PROTOCOL = Path(__file__).parents[3] / "docs" / "reference" / "agent-protocol.md"
names = st.sampled_from(["ada", "bob"])
projects = st.sampled_from(["", "acme"])  #: with the same names and keys
texts = st.sampled_from(sorted(SCRIPTS))
anything = st.integers(0, 30)


class AgentsUnderLaw(RuleBasedStateMachine):
    """Actions of callers, workers, persons and clocks on agents, and deaths."""

    url = "sqlite://"

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.url)
        self.sent = 0
        self.old_heads: list[Head] = []
        self.added = 0

    def teardown(self) -> None:
        try:
            if not self.world.problems:
                self.world.come_to_rest()
                self.no_commit_breaks_a_law()
                self._each_end_has_a_cause()
        finally:
            self.world.close()

    @invariant()
    def no_commit_breaks_a_law(self) -> None:
        assert self.world.problems == [], "\n".join(self.world.problems)

    # --- callers ---

    @rule(
        project=projects,
        name=names,
        text=texts,
        key=st.sampled_from([None, None, "key 1", "key 2"]),
        when_busy=st.sampled_from(["queue", "queue", "refuse", "interrupt"]),
    )
    def send(self, project: str, name: str, text: str, key: str | None, when_busy: Any) -> None:
        world, told = self.world, self.world.told
        self.sent += 1
        asked = (project, name, key or f"message {self.sent}")
        known = told.accepted.get(asked)
        if known is not None and (project, known) in told.removed:
            known = None
        is_there = any(
            (turn.project_id, turn.agent_id, turn.correlation_id) == asked
            for turn in world.rows.turns.values()
        )
        is_busy = self._is_busy(project, name)
        told.asked.add(asked)
        address = chief.at(name, project=project).options(key=asked[2], when_busy=when_busy)
        try:
            turn = world.act(address.send, text)
        except AgentBusy:
            assert when_busy == "refuse"
            assert is_busy
            assert not is_there
            return
        if turn is Killed:
            return
        assert turn.duplicate == is_there
        assert known in (None, turn.id)
        assert is_there or when_busy != "refuse" or not is_busy
        told.accepted[asked] = turn.id
        told.removed.discard((project, turn.id))  # a key may be used again after a purge

    def _is_busy(self, project: str, name: str) -> bool:
        return any(
            (turn.project_id, turn.agent_id) == (project, name) and turn.finished_at is None
            for turn in self.world.rows.turns.values()
        )

    @initialize(texts=st.lists(texts, min_size=1, max_size=4), name=names)
    def send_several(self, texts: list[str], name: str) -> None:
        for text in texts:
            self.send("", name, text, None, "queue")

    @rule(project=projects, name=names, text=texts, key=st.sampled_from(["key 1", "key 2"]))
    def send_with_a_key(self, project: str, name: str, text: str, key: str) -> None:
        self.send(project, name, text, key, "queue")

    @precondition(lambda self: self.world.rows.turns)
    @rule(at=anything)
    def stop(self, at: int) -> None:
        turn = self._turn(at)
        self.world.act(self.world.agents.stop, turn.project_id, turn.agent_turn_id, "enough")

    def _turn(self, at: int) -> Row:
        """A turn: mostly one that goes on, and of these mostly the newest, which waits."""
        turns = sorted(self.world.rows.turns.values(), key=_age)
        going_on = [turn for turn in turns if turn.finished_at is None]
        chosen = going_on if going_on and at % 4 else turns
        return chosen[-1 - at // 4 % len(chosen)]

    def _call(self, at: int) -> Row:
        calls = sorted(
            self.world.rows.calls.values(),
            key=lambda call: (
                call.wait_status != "waiting",
                call.created_at,
                call.agent_id,
                call.project_id,
                call.tool_name,
                call.position,
            ),
        )
        return calls[at % len(calls)]

    # --- workers ---

    @precondition(lambda self: self.world.due_tasks())
    @rule(
        at=anything,
        way=st.sampled_from(["well", "well", "well", "twice", "dies", "is slow"]),
        in_place=st.booleans(),
    )
    def work(self, at: int, way: str, in_place: bool) -> None:
        self._remember_heads()
        self.world.act(self._work, at, way, "", in_place)

    def _work(self, at: int, way: str, only: str = "", in_place: bool = False) -> None:
        world = self.world
        task = world.claim(at, only)
        if task is None:
            return
        outcome = world.run(task, in_place=in_place)
        if way == "dies":
            raise Killed
        if way == "is slow":
            world.held.append((task, outcome, False))
            return
        world.report(task, outcome)
        if way == "twice":
            assert not world.report(task, outcome)

    @precondition(lambda self: self.world.due_tasks())
    @rule(most=st.integers(2, 12))
    def work_on(self, most: int) -> None:
        """Run some tasks one after the other."""
        for _ in range(most):
            if self.world.act(self._work, 0, "well") is Killed or not self.world.due_tasks():
                return

    @precondition(lambda self: self.world.due_tasks(MODEL))
    @rule(most=st.integers(1, 4))
    def models_answer(self, most: int) -> None:
        """Run model calls alone, so that turns wait for their calls."""
        for _ in range(most):
            if self.world.act(self._work, 0, "well", MODEL) is Killed:
                return

    @precondition(lambda self: self.world.rows.calls)
    @rule(most=st.integers(1, 3))
    def results_and_timeouts_meet(self, most: int) -> None:
        """Some results wait in the inbox when the deadline of their calls passes."""
        before, self.world.wakeups = self.world.wakeups, "lost"
        for _ in range(most):
            self.world.act(self._work, 0, "well", search.name)
        self.time_passes(31)
        self.world.wakeups = before

    @precondition(lambda self: self.world.held)
    @rule(at=anything)
    def a_slow_worker_reports(self, at: int) -> None:
        """A worker that lives is heard, however long it took; one that was lost is perhaps not."""
        world = self.world
        task, outcome, is_dead = world.held.pop(at % len(world.held))
        heads = [h for h in world.rows.heads.values() if h.model_run_id == task.workflow_id]
        accepted = world.act(world.report, task, outcome)
        if heads and not is_dead and accepted is not Killed:
            assert accepted, "a worker that lives has lost its model call"

    # --- reports and persons ---

    @precondition(lambda self: self.world.rows.calls)
    @rule(at=anything, times=st.integers(1, 3), after=st.sampled_from(["", "", "terminate"]))
    def report_from_outside(self, at: int, times: int, after: str) -> None:
        call, world = self._call(at), self.world
        key = (call.project_id, call.agent_turn_id, call.tool_call_id)
        for _ in range(times):
            current = world.rows.calls.get(key)
            if current is None:
                return  # purged
            is_open = current.wait_status == WaitState.WAITING and not self._is_reported(call)
            duplicate = world.act(world.agents.report, *key, "outside", after_execution=after)
            if duplicate is Killed:
                return
            assert duplicate != is_open

    def _is_reported(self, call: Row) -> bool:
        return any(
            (m.project_id, m.agent_id, m.message_type, m.correlation_id)
            == (call.project_id, call.agent_id, MessageType.TOOL_RESULT, call.tool_call_id)
            for m in self.world.rows.messages.values()
        )

    @precondition(lambda self: self.world.rows.calls)
    @rule(at=anything, approves=st.booleans())
    def decide(self, at: int, approves: bool) -> None:
        asked = [c for c in self.world.rows.calls.values() if c.approval]
        call = self._call(at) if not asked else sorted(asked, key=_age_of_call)[at % len(asked)]
        key = (call.project_id, call.agent_turn_id, call.tool_call_id)
        is_open = call.approval == "asked" and call.wait_status == WaitState.WAITING
        agents = self.world.agents
        try:
            if approves:
                self.world.act(agents.approve, *key, by="eva")
            else:
                self.world.act(agents.reject, *key, by="eva", reason="too much")
        except CallRefused:
            assert not is_open
        else:
            assert is_open

    # --- messages that do not fit ---

    @precondition(lambda self: self.world.rows.calls)
    @rule(at=anything)
    def a_report_cannot_be_read(self, at: int) -> None:
        call = self._call(at)
        self.world.told.unreadable.add(f"m{self.added + 1:031}")
        self._add(call, MessageType.TOOL_RESULT, call.tool_call_id, {"card": "missing"})

    @precondition(lambda self: self.world.rows.turns)
    @rule(at=anything, kind=st.sampled_from(["stop", "tool_result", "nonsense", "later stop"]))
    def a_message_does_not_fit(self, at: int, kind: str) -> None:
        """It names no turn, has no known type, or an epoch that the turn never had."""
        turn = self._turn(at)
        if kind != "later stop":
            self.added += 1
            turn = turn._replace(agent_turn_id=f"{self.added:032}")
            self._add(turn, kind, turn.agent_turn_id, {})
        elif turn.state == "active" and not _has(self.world.rows.messages, turn, "stop"):
            epoch = self.world.rows.heads[turn.project_id, turn.agent_id].turn_epoch + 50
            about = {"code": "stopped", "reason": "late", "status": "canceled", "by": ""}
            self._add(turn, MessageType.STOP, turn.agent_turn_id, about, epoch)

    def _add(self, row: Row, kind: str, correlation: str, payload: Any, epoch: int = 0) -> None:
        self.added += 1
        now = self.world.clock.now
        message = Message(
            *(row.project_id, f"m{self.added:031}", row.agent_id, kind, correlation),
            *(row.agent_turn_id, epoch, payload, InboxState.PENDING, 0, now, now),
        )
        self.world.act(self.world.desk.add, message)

    # --- time, deaths and wake-ups ---

    @rule(seconds=st.sampled_from([1, 6, 6, 6, 31, 110, 700]))
    def time_passes(self, seconds: int) -> None:
        self._remember_heads()
        if self.world.act(self.world.tick, seconds) is not Killed:
            self.world.recovered()

    @rule(wakeups=st.sampled_from(["received", "lost", "doubled"]))
    def wake_ups_are(self, wakeups: Any) -> None:
        self.world.wakeups = wakeups

    @rule(commits=st.integers(1, 8), before=st.booleans())
    def the_process_will_die(self, commits: int, before: bool) -> None:
        self.world.dies = (commits, before)

    @precondition(lambda self: self.world.rows.heads)
    @rule(at=anything)
    def ring(self, at: int) -> None:
        """A wake-up for an agent that has nothing to take in changes nothing."""
        world = self.world
        heads = sorted(world.rows.heads.values(), key=lambda h: (h.project_id, h.agent_id))
        head, before = heads[at % len(heads)], world.rows
        own = [
            m
            for m in before.messages.values()
            if (m.project_id, m.agent_id) == (head.project_id, head.agent_id)
        ]
        has_work = any(m.status in ("queued", "deferred") for m in own) or any(
            m.status == "pending" and m.message_type not in MessageType.STARTS for m in own
        )
        world.act(world.agents.wake, head.project_id, head.agent_id, None)
        assert has_work or world.rows == before

    # --- late writers ---

    def _remember_heads(self) -> None:
        with self.world.engine.database.read() as session:
            found = [session.agent_heads.get(*key) for key in sorted(self.world.rows.heads)]
        self.old_heads += [head for head in found if head is not None]
        del self.old_heads[:-20]

    @precondition(lambda self: self.old_heads)
    @rule(at=anything)
    def a_late_writer_saves_its_head(self, at: int) -> None:
        """The guard alone refuses it: no lock is held."""
        old, world = self.old_heads[at % len(self.old_heads)], self.world
        head = world.rows.heads.get((old.project, old.agent))
        is_stale = head is None or (old.epoch, old.turn_id) != (
            *(head.turn_epoch, head.active_agent_turn_id),
        )
        if not is_stale:
            return
        late = replace(old, status=HeadState.RUNNING, waiting=7)
        assert world.act(self._save, late) in (False, Killed)

    def _save(self, late: Head) -> bool:
        with self.world.engine.database.write() as session:
            guard = (late.epoch, late.turn_id)
            return session.agent_heads.save(late, guard, self.world.clock.now)

    @precondition(lambda self: self.old_heads)
    @rule(at=anything)
    def a_late_writer_takes_in_messages(self, at: int) -> None:
        """A worker of the try before, which has lost its lock: another try has entered since."""
        late = [old for old in self.old_heads if self._is_of_an_earlier_try(old)]
        if not late:
            return
        old = late[at % len(late)]
        lock = AgentHeads.lock

        def locked(heads: AgentHeads, project: str, agent: str, **options: Any) -> Head | None:
            found = lock(heads, project, agent, **options)
            is_own = (project, agent) == (old.project, old.agent) and found is not None
            return replace(old) if is_own else found

        with patch.object(AgentHeads, "lock", locked):
            self.world.act(self.world.agents._take_in, old.project, old.agent, None)

    def _is_of_an_earlier_try(self, old: Head) -> bool:
        head = self.world.rows.heads.get((old.project, old.agent))
        if head is None or old.run_id is None or old.epoch == head.turn_epoch:
            return False
        return (old.turn_id, old.run_id) == (head.active_agent_turn_id, head.model_run_id)

    # --- removal ---

    @rule(seconds=st.sampled_from([0, 60]), with_runs=st.booleans())
    def purge(self, seconds: int, with_runs: bool) -> None:
        world = self.world
        if world.act(world.tick, 6) is Killed:
            return
        world.act(world.engine.purger.purge_turns, older_than=seconds)
        if with_runs:
            world.act(world.engine.purge, older_than=seconds)

    # --- the model ---

    def _each_end_has_a_cause(self) -> None:
        """A turn that nobody stopped, refused or disturbed ends as its script says."""
        for turn in self.world.rows.turns.values():
            if turn.task_status == "success":
                assert turn.error_code is None
            else:
                assert turn.error_code in _CAUSES[turn.task_status], turn


_CAUSES = {
    "canceled": {"stopped", "interrupted", "not_wanted", "join_failed", "tool_ended_turn"},
    "timeout": {"max_seconds_reached", "join_deadline", "tool_ended_turn"},
    "failed": {
        *("model_failed", "max_steps_reached", "tool_ended_turn", "resume_retry_exhausted"),
        "dispatch_failed",
    },
}


def _age(turn: Row) -> Any:
    return (turn.enqueued_at, turn.project_id, turn.facet, turn.correlation_id)


def _age_of_call(call: Row) -> Any:
    return (call.wait_status != "waiting", call.created_at, call.project_id, call.agent_id)


def _has(messages: Any, turn: Row, kind: str) -> bool:
    return any(
        (m.project_id, m.agent_turn_id, m.message_type)
        == (turn.project_id, turn.agent_turn_id, kind)
        for m in messages.values()
    )


TestAgentsUnderLaw = AgentsUnderLaw.TestCase
TestAgentsUnderLaw.settings = settings(
    max_examples=600 if AT_RANDOM else 6, stateful_step_count=50 if AT_RANDOM else 30
)


def test_the_laws_hold_on_postgresql(postgres: PostgresServer, with_schema: str) -> None:
    """The same machine, shorter: each example has a database of its own."""
    made: list[str] = []

    class OnPostgres(AgentsUnderLaw):
        def __init__(self) -> None:
            self.url = postgres.new_database(with_schema)
            made.append(self.url)
            super().__init__()

        def teardown(self) -> None:
            super().teardown()
            postgres.drop_database(self.url)

    chosen = settings(
        max_examples=40 if AT_RANDOM else 2, stateful_step_count=30 if AT_RANDOM else 15
    )
    run_state_machine_as_test(OnPostgres, settings=chosen)
    assert made


def test_each_law_has_a_number_a_sentence_and_a_check() -> None:
    numbers = [*LAWS, *AT_REST, *AFTER_RECOVERY, *OF_TIME]
    assert sorted(numbers) == list(range(1, 42))
    assert len(sentences()) == 41


def test_the_laws_of_the_reference_are_those_that_are_checked() -> None:
    text = PROTOCOL.read_text().partition("## Invariants\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    shown = {sentence: check.strip("`") for sentence, check in rows[2:]}
    assert shown == sentences()
