"""Calls that a turn waits for: approved or rejected by a person, or reported from outside."""

from __future__ import annotations

from flowengine.agents.asked_calls import argument_problem
from flowengine.agents.call_runs import CallRuns
from flowengine.agents.turn_effects import TurnEffects
from flowengine.errors import CallRefused, UnknownTurn
from flowengine.evaluator.records import id_within
from flowengine.program.nodes import Json
from flowengine.settings import Settings
from flowengine.store import Session, Store, codec
from flowengine.store.agent_calls import AgentCall
from flowengine.store.agent_inbox import Message
from flowengine.store.cards import Card
from flowengine.turns.machine import call_run_id
from flowengine.turns.records import Call, CardType, Head, Turn
from flowengine.turns.states import (
    AfterExecution,
    HeadState,
    InboxState,
    MessageType,
    TaskStatus,
    WaitState,
)


class Calls:
    def __init__(self, database: Store, runs: CallRuns, settings: Settings) -> None:
        self._database, self._runs, self._settings = database, runs, settings

    def approve(
        self, project: str, turn_id: str, call_id: str, *, by: str, arguments: Json
    ) -> TurnEffects:
        """Start a call that waits for a person. The first decision counts."""
        effects = TurnEffects()
        with self._database.write() as session:
            head, turn, call = self._open_call(session, project, turn_id, call_id)
            self._check_asked(call, turn_id)
            now, known = session.now(), self._runs.profile(session, turn)
            tool = known.profile.tool(call.name)
            assert tool is not None
            if arguments is None:
                card = session.cards.get(project, _call_card(turn, session, call_id))
                assert card is not None
                assert isinstance(card.content, dict)
                arguments = card.content["arguments"]
            if not isinstance(arguments, dict):
                raise CallRefused(turn_id, call_id, "its arguments are a map of names to values")
            problem = argument_problem(known, tool, arguments, self._settings.max_schema_checks)
            if problem:
                raise CallRefused(turn_id, call_id, f"the arguments do not fit: {problem}")
            call.approval, call.run_id = "approved", call_run_id(call_id)
            timeout = tool.timeout or self._settings.agent_tool_timeout
            call.deadline = now + round(timeout * 1000)
            if not session.agent_turns.decide_call(turn, call, by):
                raise CallRefused(turn_id, call_id, "somebody has decided about it")
            deadline = min(call.deadline, head.resume_deadline or call.deadline)
            before = (head.epoch, head.turn_id)
            head.resume_deadline = deadline
            session.agent_heads.save(head, before, now)
            report = AgentCall(turn.agent, MessageType.TOOL_RESULT, call_id, turn_id, head.epoch)
            effects.requests.append(
                self._runs.request(known, tool.workflow, arguments, turn, call.run_id, report)
            )
            self._runs.start(session, effects, now)
        return effects

    def reject(
        self, project: str, turn_id: str, call_id: str, *, by: str, reason: str
    ) -> TurnEffects:
        """End a call that waits for a person; the model reads the reason."""
        effects = TurnEffects()
        with self._database.write() as session:
            _, turn, call = self._open_call(session, project, turn_id, call_id)
            self._check_asked(call, turn_id)
            call.approval = "rejected"
            if not session.agent_turns.decide_call(turn, call, by):
                raise CallRefused(turn_id, call_id, "somebody has decided about it")
            text = f"{by} has rejected the call" + (f": {reason}" if reason else "")
            error: Json = {"code": "rejected", "message": text}
            self._add_report(session, turn, call, TaskStatus.FAILED, None, error, "")
        effects.agents.append((project, turn.agent))
        return effects

    def report(
        self,
        project: str,
        turn_id: str,
        call_id: str,
        result: Json = None,
        *,
        status: str = TaskStatus.SUCCESS,
        error: Json = None,
        after_execution: str = "",
        epoch: int | None = None,
    ) -> tuple[bool, TurnEffects]:
        """Give the result of a call from outside; the first value is whether it had one."""
        if status not in TaskStatus.ALL:
            known = ", ".join(TaskStatus.ALL)
            raise CallRefused(turn_id, call_id, f"its status {status!r} is not one of {known}")
        if after_execution and after_execution not in AfterExecution.ALL:
            text = f"after_execution is 'suspend' or 'terminate', not {after_execution!r}"
            raise CallRefused(turn_id, call_id, text)
        if error is not None and not isinstance(error, dict):
            raise CallRefused(turn_id, call_id, f"its error is a map, not {error!r:.80}")
        limits = (self._settings.max_value_bytes, self._settings.max_json_depth)
        codec.check_value(f"the result of call {call_id}", result, *limits)
        codec.check_value(f"the error of call {call_id}", error, *limits)
        effects = TurnEffects()
        with self._database.write() as session:
            head, turn = self._locked(session, project, turn_id)
            call = _find(session, turn, call_id)
            if call is None:
                raise CallRefused(turn_id, call_id, "the turn has made no such call")
            if epoch is not None and epoch > head.epoch:
                text = f"it names epoch {epoch}, and the agent has {head.epoch}"
                raise CallRefused(turn_id, call_id, text)
            if call.state != WaitState.WAITING or head.turn_id != turn_id:
                return True, effects
            if not self._add_report(session, turn, call, status, result, error, after_execution):
                return True, effects
        effects.agents.append((project, turn.agent))
        return False, effects

    # --- rows ---

    def _add_report(
        self,
        session: Session,
        turn: Turn,
        call: Call,
        status: str,
        result: Json,
        error: Json,
        after_execution: str,
    ) -> bool:
        """Store the result as a card, and a message that points to it; False: there is one."""
        now = session.now()
        card_id = id_within(call.id, "reported")
        content: Json = {"function_name": call.name, "status": status, "result": result}
        if error is not None:
            content = {"function_name": call.name, "status": status, "error": error}
        # Of another type than the result: that card is written when the report is applied.
        card = Card(card_id, "tool.report", "", turn.id, call.step_id, call.id, content, 0)
        payload: Json = {"card": card_id, "after_execution": after_execution}
        message = Message(
            turn.project,
            id_within(call.id, "outside"),
            turn.agent,
            MessageType.TOOL_RESULT,
            call.id,
            turn.id,
            0,
            payload,
            InboxState.PENDING,
            0,
            now,
            now,
        )
        if not session.agent_inbox.add(message):
            return False
        session.cards.add(turn.project, turn.id, [card], now)
        return True

    def _locked(self, session: Session, project: str, turn_id: str) -> tuple[Head, Turn]:
        turn = session.agent_turns.get(project, turn_id)
        head = None if turn is None else session.agent_heads.lock(project, turn.agent)
        if turn is None or head is None:
            raise UnknownTurn(turn_id)
        return head, turn

    def _open_call(
        self, session: Session, project: str, turn_id: str, call_id: str
    ) -> tuple[Head, Turn, Call]:
        head, turn = self._locked(session, project, turn_id)
        call = _find(session, turn, call_id)
        if call is None:
            raise CallRefused(turn_id, call_id, "the turn has made no such call")
        is_waiting = head.turn_id == turn_id and head.status == HeadState.SUSPENDED
        if not is_waiting or call.state != WaitState.WAITING:
            raise CallRefused(turn_id, call_id, "the turn does not wait for it any more")
        return head, turn, call

    def _check_asked(self, call: Call, turn_id: str) -> None:
        if call.approval != "asked":
            shown = call.approval or "needs no approval"
            raise CallRefused(turn_id, call.id, f"nobody has to decide about it: it is {shown}")


def _find(session: Session, turn: Turn, call_id: str) -> Call | None:
    calls = session.agent_turns.all_calls(turn.project, turn.id)
    return next((call for call in calls if call.id == call_id), None)


def _call_card(turn: Turn, session: Session, call_id: str) -> str:
    """Return the id of the card of a call."""
    cards = session.cards.read(turn.project, turn.output_box_id, turn.base_index)
    return next(
        card.id
        for card in cards
        if card.type == CardType.TOOL_CALL and card.tool_call_id == call_id
    )
