"""The first message of an agent: all its rows are new, so one statement inserts them.

An agent that is addressed by no name has an id that nobody else has sent to. Its head is inserted
with the turn that it works on, without a lock or a query before. If a row is there already (the
message was sent before, or the agent has a memory), or the profile is not stored yet, the statement
is refused whole, and the message is enqueued under the lock of the head.
"""

from __future__ import annotations

from flowengine.agents.call_runs import CallRuns
from flowengine.agents.enqueue import (
    Enqueued,
    Enqueuer,
    NewTurn,
    add_context,
    add_message,
    correlation_of,
    instruction_id,
    message_of,
    turn_of,
)
from flowengine.agents.profile_cache import ProfileCache
from flowengine.agents.turn_effects import TurnEffects
from flowengine.agents.turn_writer import TurnWriter
from flowengine.store import Session
from flowengine.store.agent_plans import AgentPlan
from flowengine.store.agent_rows import HeadMessages, NewBox
from flowengine.store.commits import CommitPlan
from flowengine.turns import machine
from flowengine.turns.records import Head
from flowengine.turns.states import InboxState, TurnState


class FirstMessages:
    """Dispatches turns of new agents."""

    def __init__(self, runs: CallRuns, profiles: ProfileCache, enqueuer: Enqueuer) -> None:
        self._runs, self._profiles, self._enqueuer = runs, profiles, enqueuer

    def send(self, session: Session, new: NewTurn) -> tuple[Enqueued, TurnEffects]:
        """Insert an agent with its first turn, dispatched. Raises CommitRefused, TurnRefused."""
        self._enqueuer.check(new)
        now, effects = session.now(), TurnEffects()
        plan = CommitPlan(rule=session.outbox_rule, notes_of=session.poller_notes)
        plan.agents = rows = AgentPlan()
        rows.held_profile = (new.project, new.profile.id)
        known, turn = self._profiles.of(new.profile), turn_of(new, now)
        turn.deadline = known.deadline(now)
        head = Head(new.project, new.agent)
        changes = machine.dispatch(head, turn)
        epoch, turn.state = changes.head.epoch, TurnState.ACTIVE
        message = message_of(new, turn)._replace(status=InboxState.PENDING, epoch=epoch)
        ids = add_context(plan, new, turn, now)
        boxes = ((turn.context_box_id, "context"), (turn.output_box_id, "output"))
        rows.new_boxes += [NewBox(new.project, b, kind, new.agent, None, now) for b, kind in boxes]
        rows.append_cards(new.project, turn.context_box_id, ids, turn.id, 0)
        add_message(rows, new, turn, message, now)
        writer = TurnWriter(self._runs, plan, effects, now, HeadMessages.TAKEN)
        writer.write(turn, known, head, changes)
        # The instruction belongs to the memory of the agent: later turns read it there.
        writer.append(turn, [instruction_id(turn.id)], epoch)
        rows.insert_heads()
        rows.turns.clear()  # the update that the writer has added: the new row has its values
        rows.add_turn(turn, correlation_of(new, turn), epoch, now)
        self._runs.stage(session, writer.requests, plan, effects, now, None)
        session.commit(plan, guarded=True)
        return Enqueued(turn.id, epoch), effects
