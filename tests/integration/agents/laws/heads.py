"""Laws of heads: the state of an agent, its epoch, and the turn that it works on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from tests.integration.agents.laws.law import law
from tests.integration.agents.laws.rows import Commit, Row, body_of
from tests.unit.turns.test_states import EDGES


@law(1, "an idle agent has no turn, and waits for nothing; another one has an active turn")
def an_idle_agent_waits_for_nothing(commit: Commit) -> Iterator[str]:
    rows = commit.after
    for head in rows.heads.values():
        turn = rows.active_turn(head)
        if (head.status == "idle") != (head.active_agent_turn_id is None):
            yield f"{head.agent_id} is {head.status} with turn {head.active_agent_turn_id}"
        if head.status != "idle":
            if turn is None or turn.state != "active" or turn.agent_id != head.agent_id:
                yield f"{head.agent_id} works on a turn that is not active: {turn}"
            continue
        left = (head.waiting_tool_count, head.resume_deadline, head.model_run_id)
        if left != (0, None, None) or head.output_box_id is not None:
            yield f"{head.agent_id} is idle, and waits: {head}"
        if rows.open_calls(head):
            yield f"{head.agent_id} is idle, and has open calls"


@law(2, "a suspended agent counts its open calls; each has a deadline, or a person decides")
def a_suspended_agent_counts_its_calls(commit: Commit) -> Iterator[str]:
    for head in commit.after.heads.values():
        waiting = commit.after.open_calls(head)
        if head.waiting_tool_count != len(waiting):
            yield f"{head.agent_id} counts {head.waiting_tool_count} of {len(waiting)} calls"
        if (head.status == "suspended") != bool(waiting):
            yield f"{head.agent_id} is {head.status} with {len(waiting)} open calls"
        for call in waiting:
            if call.deadline is None and call.approval not in ("asked", "rejected"):
                yield f"nothing ends the wait for {call.tool_call_id}"


@law(3, "the epoch of an agent never falls, and each dispatch has a higher one")
def the_epoch_never_falls(commit: Commit) -> Iterator[str]:
    for before, after in commit.kept("heads"):
        if after.turn_epoch < before.turn_epoch:
            yield f"{after.agent_id}: {before.turn_epoch} became {after.turn_epoch}"
    for turn in commit.after.turns.values():
        known = commit.before.turn(turn)
        if turn.dispatched_at is None or (known is not None and known.dispatched_at is not None):
            continue
        head = commit.before.head(turn)
        if turn.turn_epoch <= (0 if head is None else head.turn_epoch):
            yield f"turn {turn.agent_turn_id} was dispatched under epoch {turn.turn_epoch}"


@law(4, "an agent moves along the table of transitions alone")
def an_agent_moves_along_the_table(commit: Commit) -> Iterator[str]:
    """One commit may take in several messages; each move but an entering writes an event."""
    events = sorted(commit.new("events"), key=lambda event: event.number)
    for key, after in commit.after.heads.items():
        before = commit.before.heads.get(key)
        own = [e for e in events if (e.project_id, e.agent_id) == key and e.kind == "state"]
        moves = [body_of(event)["status"] for event in own]
        states = ["idle" if before is None else before.status, *moves]
        if states[-1] != after.status:
            states.append(after.status)
        for pair in pairwise(states):
            if pair not in EDGES:
                yield f"{after.agent_id} went {' > '.join(states)}"
        if before is not None and not moves and before.status != after.status:
            enters = (before.status, after.status) == ("dispatched", "running")
            if not enters:
                yield f"{after.agent_id} went {before.status} > {after.status} without an event"


@law(5, "an agent works on one turn at a time")
def an_agent_works_on_one_turn(commit: Commit) -> Iterator[str]:
    active = Counter(
        (turn.project_id, turn.agent_id)
        for turn in commit.after.turns.values()
        if turn.state == "active"
    )
    for key, head in commit.after.heads.items():
        if active.pop(key, 0) != (head.status != "idle"):
            yield f"{key} is {head.status}, and has another number of active turns"
    if active:
        yield f"there are active turns of unknown agents: {active}"
    for key, turns in commit.after.by_agent("turns").items():
        dispatched = sorted(
            (turn for turn in turns if turn.dispatched_at is not None),
            key=lambda turn: turn.turn_epoch,
        )
        for one, other in pairwise(dispatched):
            if one.finished_at is None or one.finished_at > other.dispatched_at:
                yield f"two turns of {key} overlap: {one.agent_turn_id}, {other.agent_turn_id}"


@law(6, "a writer that is stale changes nothing: an ended turn stays as it is")
def an_ended_turn_stays_as_it_is(commit: Commit) -> Iterator[str]:
    for name in ("turns", "steps", "calls", "cards"):
        for before, after in commit.changed(name):
            if name == "cards" or commit.was_finished(before):
                yield f"a row of {name} was changed: {before} became {after}"
    for name in ("steps", "calls", "events", "edges"):
        for row in commit.new(name):
            # The end of a join is recorded for audits, also if nobody waits for it any more.
            if commit.was_finished(row) and getattr(row, "primitive", "") != "join":
                yield f"an ended turn has a new row of {name}: {row}"
    for card in commit.new("cards"):
        if card.agent_turn_id is not None and commit.was_finished(card):
            yield f"an ended turn has a new card: {card}"
    yield from _steps_behind(commit)


def _steps_behind(commit: Commit) -> Iterator[str]:
    """A turn that is written to is active, or ends now, or waits in the queue."""
    for event in commit.new("events"):
        head = commit.after.head(event)
        turns = set(_turns_of(commit, event))
        if head is None or event.agent_turn_id not in turns:
            yield f"an event of a turn that its agent does not work on: {event}"


def _turns_of(commit: Commit, event: Row) -> Iterator[str | None]:
    """The turns of an event's agent that this commit may write to."""
    for rows in (commit.before, commit.after):
        head = rows.head(event)
        if head is not None:
            yield head.active_agent_turn_id
    for turn in commit.after.turns.values():
        known = commit.before.turn(turn)
        if turn.finished_at is not None and (known is None or known.finished_at is None):
            yield turn.agent_turn_id
