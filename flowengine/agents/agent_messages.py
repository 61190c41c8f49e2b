"""Messages of an agent as triggers of its machine, and the messages that end turns and calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flowengine.agents.asked_calls import model_answered
from flowengine.agents.profile_cache import KnownProfile
from flowengine.agents.tools_in_place import CONTROL, number_of, results_of
from flowengine.errors import FlowengineError
from flowengine.evaluator.records import id_within
from flowengine.evaluator.states import RunState
from flowengine.models import Answer
from flowengine.program.nodes import Json
from flowengine.store import Session, codec
from flowengine.store.agent_inbox import Message
from flowengine.turns.records import Call, Head, ModelFailed, Reported, Stopped, Trigger, Turn
from flowengine.turns.states import InboxState, MessageType, TaskStatus, WaitState

_LOST = "WorkerLost"
_STATUS_OF_RUN = {RunState.FAILED: TaskStatus.FAILED, RunState.CANCELLED: TaskStatus.CANCELED}


class RunEnd(NamedTuple):
    """How the run of a call has ended."""

    state: str
    outputs: dict[str, Any]
    error: dict[str, Any]


class MessageReader:
    """Reads the rows that a message points to, in the transaction that takes it in."""

    def __init__(self, session: Session, max_checks: int) -> None:
        self._session, self._max_checks = session, max_checks

    def trigger(
        self, message: Message, head: Head, turn: Turn, known: KnownProfile
    ) -> Trigger | None:
        """Return the trigger; None: the message is stale."""
        about = message.payload
        assert isinstance(about, dict)
        match message.type:
            case MessageType.MODEL_RESULT:
                return self._answer(str(about["run"]), known)
            case MessageType.TOOL_RESULT:
                return self._report(message.correlation_id, about, turn)
            case MessageType.TIMEOUT:
                text = "no result arrived in time"
                error: dict[str, Json] = {"code": "tool_timeout", "message": text}
                call_id = message.correlation_id
                return Reported(call_id, TaskStatus.TIMEOUT, error=error, is_timeout=True)
            case MessageType.STOP:
                if message.epoch > head.epoch:
                    return None  # a stop names an epoch that this turn never had
                code, status = str(about["code"]), str(about["status"])
                return Stopped(code, str(about["reason"]), status, str(about.get("by", "")))
        return None

    def _answer(self, run_id: str, known: KnownProfile) -> Trigger:
        return answered(run_id, self._end(run_id), known, self._max_checks)

    def _report(self, call_id: str, about: Mapping[str, Any], turn: Turn) -> Trigger | None:
        if "card" in about:  # a result from outside
            card = self._session.cards.get(turn.project, str(about["card"]))
            assert card is not None
            assert isinstance(card.content, dict)
            content = card.content
            error = content.get("error")
            return Reported(
                call_id,
                str(content["status"]),
                content.get("result"),
                error if isinstance(error, dict) else None,
                str(about.get("after_execution") or ""),
                is_early=True,
            )
        return reported(call_id, self._end(str(about["run"])))

    def _end(self, run_id: str) -> RunEnd:
        run = self._session.runs.get(run_id)
        if run is None:
            error = {"type": "UnknownRun", "message": f"run {run_id} was removed"}
            return RunEnd(RunState.FAILED, {}, error)
        outputs = self._session.payloads.resolved(codec.attributes(run.outputs))
        problem = codec.load(run.error) if run.error else {}
        return RunEnd(run.state, outputs, problem if isinstance(problem, dict) else {})


def answered(run_id: str, end: RunEnd, known: KnownProfile, max_checks: int) -> Trigger:
    """Return the trigger of a model call that has ended."""
    if end.state != RunState.COMPLETED:
        kind = str(end.error.get("type", end.state))
        code = "worker_lost" if kind == _LOST else "model_failed"
        status = _STATUS_OF_RUN.get(end.state, TaskStatus.FAILED)
        message = f"{kind}: {end.error.get('message', end.state)}"
        return ModelFailed(run_id, code, message, status)
    written = end.outputs.get("result")
    try:
        answer = Answer.from_json(written)
    except FlowengineError as problem:
        return ModelFailed(run_id, "model_failed", str(problem))
    return model_answered(
        run_id, answer, known, max_checks, results_of(written), number_of(written)
    )


def reported(call_id: str, end: RunEnd) -> Trigger:
    """Return the trigger of a call whose run has ended."""
    if end.state == RunState.COMPLETED:
        result = end.outputs.get("result") if set(end.outputs) == {"result"} else end.outputs
        return Reported(call_id, TaskStatus.SUCCESS, result, after_execution=_control(result))
    told: dict[str, Json] = {"code": str(end.error.get("type", end.state))}
    told["message"] = str(end.error.get("message", "the run did not complete"))
    return Reported(call_id, _STATUS_OF_RUN.get(end.state, TaskStatus.FAILED), error=told)


def _control(result: Json) -> str:
    """Return the override of `after_execution` that a result may carry."""
    control = result.get(CONTROL) if isinstance(result, dict) else None
    given = control.get("after_execution") if isinstance(control, dict) else None
    return given if isinstance(given, str) else ""


def stop_message(
    turn: Turn, code: str, reason: str, status: str, now: int, *, by: str = "", epoch: int = 0
) -> Message:
    """Return the message that ends a turn. A turn is stopped once: the first reason counts."""
    payload: Json = {"code": code, "reason": reason, "status": status, "by": by}
    return Message(
        turn.project,
        id_within(turn.id, "stop"),
        turn.agent,
        MessageType.STOP,
        turn.id,
        turn.id,
        epoch,
        payload,
        InboxState.PENDING,
        0,
        now,
        now,
    )


def timeout_messages(turn: Turn, calls: Sequence[Call], epoch: int, now: int) -> list[Message]:
    """Return the messages for calls that are past their deadlines."""
    return [
        Message(
            turn.project,
            id_within(call.id, "timeout"),
            turn.agent,
            MessageType.TIMEOUT,
            call.id,
            turn.id,
            epoch,
            {},
            InboxState.PENDING,
            0,
            now,
            now,
        )
        for call in calls
        if call.state in WaitState.OPEN and call.deadline is not None and call.deadline <= now
    ]
