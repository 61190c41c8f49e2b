"""The decision about an agent after an answer, a report or a stop: pure.

Values go in, `Changes` come out: no clock, no randomness, no connection. Ids are derived from the
turn's, so two processes that decide the same write the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flowengine.evaluator.records import CLAIMS, id_within
from flowengine.program.nodes import Json
from flowengine.turns import delivery
from flowengine.turns.records import (
    AskedCall,
    Call,
    CardType,
    Changes,
    Delivery,
    EndedStep,
    Head,
    ModelAnswered,
    ModelCall,
    ModelFailed,
    NewCard,
    NewEvent,
    Reported,
    Rules,
    StartedCall,
    Stopped,
    Trigger,
    Turn,
)
from flowengine.turns.states import (
    RAISES_EPOCH,
    AfterExecution,
    HeadSignal,
    HeadState,
    TaskStatus,
    WaitState,
    next_head_state,
)

SUBMIT = "submit_result"
_SIBLINGS = f"{SUBMIT} must be the only call of an answer; no call of this answer was made"
_REMINDER = f"The task asks for result fields. Call {SUBMIT} with them to end the task."


def step_id_of(turn_id: str, number: int) -> str:
    return id_within(turn_id, "step", number)


def model_run_id(turn_id: str, number: int) -> str:
    return id_within(turn_id, "model", number)


def call_id_of(turn_id: str, number: int, index: int) -> str:
    return id_within(turn_id, "call", number, index)


def call_run_id(call_id: str) -> str:
    return id_within(call_id, "run")


def result_card_id(turn_id: str, call_id: str) -> str:
    return id_within(turn_id, "card", f"result:{call_id}")


def dispatch(head: Head, turn: Turn) -> Changes:
    """Give an idle agent its next turn, under a new epoch."""
    decision = _Decision(head, turn, (), Rules(), 0)
    decision.move(HeadSignal.DISPATCH)
    after = decision.head
    after.turn_id, after.depth, after.trace_id = turn.id, turn.depth, turn.trace_id
    after.context_box_id, after.output_box_id = turn.context_box_id, turn.output_box_id
    after.profile_box_id = turn.profile_id
    decision.ask()
    return decision.changes


def enter(head: Head, run_id: str, attempt: int) -> Head | None:
    """Return the head after a try of the model call has entered; None: it is stale.

    `attempt` grows with each claim of the call's task. A try that is older than the one that
    entered last cannot displace it. The try that has entered may do so again: a commit that claims
    the task of a call also enters it. Another claim of the same try is no recovery: the claim
    before it was released before the try began.
    """
    if head.run_id != run_id or attempt < head.entered:
        return None
    if attempt == head.entered and head.status == HeadState.RUNNING:
        return head.copied()
    if head.status not in (HeadState.DISPATCHED, HeadState.RUNNING):
        return None
    after = head.copied()
    after.entered = attempt
    if head.status == HeadState.RUNNING and attempt // CLAIMS == head.entered // CLAIMS:
        return after
    signal = HeadSignal.RECOVER if head.entered else HeadSignal.ENTER
    after.status = next_head_state(head.status, signal)
    after.epoch += signal in RAISES_EPOCH
    return after


def decide(
    head: Head, turn: Turn, calls: Sequence[Call], trigger: Trigger, rules: Rules, now: int
) -> Changes | None:
    """Return the consequences of a trigger; None: it is stale, or a duplicate, and is consumed.

    `calls` are those of the turn's present suspension.
    """
    if head.turn_id != turn.id or head.status not in HeadState.ACTIVE:
        return None
    decision = _Decision(head, turn, calls, rules, now)
    match trigger:
        case ModelAnswered() if head.run_id == trigger.run_id:
            if head.status == HeadState.DISPATCHED:
                # A person has completed the model call by hand: no worker has entered.
                decision.move(HeadSignal.ENTER)
            if trigger.number not in (None, turn.steps):
                decision.ask_again()
            else:
                decision.hear(trigger)
        case ModelFailed() if head.run_id == trigger.run_id:
            decision.fail(trigger)
        case Reported() if head.status == HeadState.SUSPENDED:
            if not decision.apply(trigger):
                return None
        case Stopped():
            decision.stop(trigger)
        case _:
            return None
    return decision.ended()


class _Decision:
    def __init__(
        self, head: Head, turn: Turn, calls: Sequence[Call], rules: Rules, now: int
    ) -> None:
        self.head = head.copied()
        self.changes = Changes(self.head, (head.epoch, head.turn_id))
        self._turn, self._rules, self._now = turn, rules, now
        self._calls = {call.id: replace(call) for call in calls}

    # --- the triggers ---

    def hear(self, answered: ModelAnswered) -> None:
        """The model has answered: call tools, go on, or deliver."""
        turn, number = self._turn, self._turn.steps
        turn.tokens += answered.tokens
        step_id = step_id_of(turn.id, number)
        self._card(CardType.THOUGHT, answered.content, f"thought:{number}", step_id)
        if answered.problem:
            self._ended_step(step_id, "failed", answered.tokens)
            self._finish_with_text(answered, TaskStatus.PARTIAL, answered.problem)
            return
        submits = [call for call in answered.calls if call.is_submit]
        calls = answered.calls
        if submits and len(calls) > 1:
            calls = tuple(replace(call, problem=_SIBLINGS) for call in calls)
        elif submits and not submits[0].problem:
            self._ended_step(step_id, "completed", answered.tokens)
            self._submit(submits[0], number, step_id)
            return
        accepted = [self._ask_for(call, number, at, step_id) for at, call in enumerate(calls)]
        if any(accepted):
            self._ended_step(step_id, "suspended", answered.tokens)
            self._suspend()
            return
        self._ended_step(step_id, "completed", answered.tokens)
        if not calls and not answered.goes_on:
            if not self._rules.must_submit:
                self._finish_with_text(answered, TaskStatus.SUCCESS, "")
                return
            self._card(CardType.REMINDER, _REMINDER, f"reminder:{number}", step_id)
        if not self._finish_if_spent(answered.text):
            self.move(HeadSignal.CONTINUE)
            self.ask(in_place=answered.is_followed_in_place)

    def ask_again(self) -> None:
        """Start the present model call again: the run that should have made it has ended.

        Its try recorded the answer before, and lost the connection before it knew that.
        """
        self._ended_step(step_id_of(self._turn.id, self._turn.steps), "failed", 0)
        self.move(HeadSignal.CONTINUE)
        self.ask()

    def fail(self, failed: ModelFailed) -> None:
        step_id = step_id_of(self._turn.id, self._turn.steps)
        self._ended_step(step_id, "failed", 0)
        self._error(failed.code, failed.message, step_id)
        self._finish(failed.status, failed.code, failed.message)

    def apply(self, report: Reported) -> bool:
        """Apply the report of a call; False: it is not waited for."""
        call = self._calls.get(report.call_id)
        if call is None or call.state not in WaitState.OPEN:
            return False
        call.state = WaitState.EXPIRED if report.is_timeout else WaitState.APPLIED
        call.ending, call.effective = report.status, call.after_execution
        if report.after_execution in AfterExecution.ALL:
            call.effective = report.after_execution
        self.changes.ended.append(call)
        if call.effective == AfterExecution.TERMINATE:
            call.result = report.result
        if report.is_timeout or report.is_early:
            self.changes.canceled.append(call)  # its run is of no use any more
        self._result(call, report.status, report.result, report.error)
        still_open = [c for c in self._calls.values() if c.state in WaitState.OPEN]
        self.head.waiting = len(still_open)
        self.head.resume_deadline = self._earliest(still_open)
        if still_open:
            self.move(HeadSignal.REPORT)
            return True
        ending = [c for c in self._calls.values() if c.effective == AfterExecution.TERMINATE]
        if ending:
            worst = [c.ending for c in ending if c.ending not in (None, TaskStatus.SUCCESS)]
            if worst and worst[0]:
                failed = next(c for c in ending if c.ending == worst[0])
                text = f"the call of {failed.name!r} that ends the turn did not succeed"
                self._finish(worst[0], "tool_ended_turn", text)
            else:
                content = delivery.of_result(ending[0].result)
                self._finish(TaskStatus.SUCCESS, "", content=content)
        elif not self._finish_if_spent(""):
            self.move(HeadSignal.RESUME)
            self.ask()
        return True

    def stop(self, stopped: Stopped) -> None:
        self._drop_calls(stopped)
        if self.head.run_id is not None:
            self._ended_step(step_id_of(self._turn.id, self._turn.steps), "failed", 0)
        self._error(stopped.code, stopped.reason, "")
        self._finish(stopped.status, stopped.code, stopped.reason, signal=HeadSignal.END)

    def ended(self) -> Changes:
        """Return the changes, with the calls that the turn waits for afterwards."""
        if self.head.status == HeadState.SUSPENDED:
            started = [started.call for started in self.changes.started]
            self.changes.calls = [*self._calls.values(), *started]
        return self.changes

    # --- moves ---

    def move(self, signal: HeadSignal) -> None:
        self.head.status = next_head_state(self.head.status, signal)
        self.head.epoch += signal in RAISES_EPOCH
        if self.head.status == HeadState.IDLE:
            return
        activity = "awaiting_tool_result" if self.head.status == HeadState.SUSPENDED else "thinking"
        body: dict[str, Json] = {"status": self.head.status, "activity": activity}
        if self.head.waiting:
            body["waiting_tool_count"] = self.head.waiting
        self._event("state", body)

    def ask(self, *, in_place: bool = False) -> None:
        """Start the next model call; in place, the try that has entered makes it."""
        turn = self._turn
        turn.steps += 1
        if not in_place:
            self.head.run_id, self.head.entered = model_run_id(turn.id, turn.steps), 0
        run_id, step_id = self.head.run_id, step_id_of(turn.id, turn.steps)
        assert run_id is not None
        self.head.waiting, self.head.resume_deadline = 0, None
        self.changes.model_call = ModelCall(run_id, step_id, turn.steps, in_place)
        self._event("step", {"step_id": step_id, "phase": "started", "run": run_id})

    def _suspend(self) -> None:
        calls = [started.call for started in self.changes.started]
        self.head.waiting, self.head.run_id = len(calls), None
        self.head.resume_deadline = self._earliest(calls)
        self.move(HeadSignal.SUSPEND)

    def _earliest(self, calls: Sequence[Call]) -> int | None:
        deadlines = [call.deadline for call in calls if call.deadline is not None]
        if self._turn.deadline is not None and calls:
            deadlines.append(self._turn.deadline)
        return min(deadlines, default=None)

    # --- calls ---

    def _ask_for(self, asked: AskedCall, number: int, index: int, step_id: str) -> bool:
        """Write the call's card, and start it, unless it is refused or was made in place.

        Returns whether it starts. The row of a call in place names the run of the model call, which
        has its result.
        """
        call_id, model_run = call_id_of(self._turn.id, number, index), self.head.run_id
        call = Call(call_id, step_id, asked.name, asked.model_call_id, position=index)
        content: dict[str, Json] = {
            "tool_name": asked.name,
            "arguments": asked.arguments,
            "model_call_id": asked.model_call_id,
            "after_execution": asked.after_execution,
        }
        self._card(CardType.TOOL_CALL, content, f"call:{number}:{index}", step_id, call_id)
        if asked.problem:
            call.ending = TaskStatus.FAILED
            error = {"code": "refused", "message": asked.problem}
            self._result(call, TaskStatus.FAILED, None, error)
            return False
        call.after_execution = asked.after_execution
        if asked.is_made_in_place:
            call.state, call.ending, call.run_id = WaitState.APPLIED, TaskStatus.SUCCESS, model_run
            self.changes.made_in_place.append(call)
            self._result(call, TaskStatus.SUCCESS, asked.result, None)
            return False
        if asked.needs_approval:
            call.approval = "asked"  # without a deadline of its own: people take their time
        else:
            call.deadline = self._now + (asked.timeout or self._rules.tool_timeout)
        if not asked.needs_approval:
            call.run_id = call_run_id(call_id)
        self.changes.started.append(StartedCall(call, asked))
        return True

    def _submit(self, asked: AskedCall, number: int, step_id: str) -> None:
        call_id = call_id_of(self._turn.id, number, 0)
        call = Call(call_id, step_id, asked.name, asked.model_call_id)
        call.after_execution = AfterExecution.TERMINATE
        content: dict[str, Json] = {"tool_name": asked.name, "arguments": asked.arguments}
        content |= {"model_call_id": asked.model_call_id, "after_execution": "terminate"}
        self._card(CardType.TOOL_CALL, content, f"call:{number}:0", step_id, call_id)
        self._result(call, TaskStatus.SUCCESS, "accepted", None)
        self._finish(TaskStatus.SUCCESS, "", content=delivery.of_fields(asked.fields))

    def _result(
        self, call: Call, status: str, result: Json, error: Mapping[str, Json] | None
    ) -> None:
        content: dict[str, Json] = {
            "function_name": call.name,
            "model_call_id": call.model_call_id,
            "status": status,
            "after_execution": call.effective,
        }
        content |= {"error": dict(error)} if error else {"result": result}
        name = f"result:{call.id}"
        self._card(CardType.TOOL_RESULT, content, name, call.step_id, call.id)

    def _drop_calls(self, stopped: Stopped) -> None:
        """End the open calls. Each is answered: a later turn reads this one as its history, and
        providers refuse a history with a call that has no result."""
        for call in self._calls.values():
            if call.state in WaitState.OPEN:
                call.state = WaitState.DROPPED
                error: dict[str, Json] = {"code": stopped.code, "message": stopped.reason}
                self._result(call, TaskStatus.CANCELED, None, error)
                self.changes.ended.append(call)
                self.changes.canceled.append(call)

    # --- the end ---

    def _finish_if_spent(self, text: str) -> bool:
        """End the turn if its budget allows no further model call."""
        turn, rules, status = self._turn, self._rules, TaskStatus.FAILED
        if turn.steps >= rules.max_steps:
            code, limit = "max_steps_reached", f"{rules.max_steps} model calls"
        elif rules.max_tokens is not None and turn.tokens >= rules.max_tokens:
            code, limit = "max_tokens_reached", f"{rules.max_tokens:,} tokens"
        elif turn.deadline is not None and self._now >= turn.deadline:
            code, limit, status = "max_seconds_reached", "seconds", TaskStatus.TIMEOUT
        else:
            return False
        message = f"the turn has used its budget of {limit}"
        self._error(code, message, "")
        self._finish(status, code, message, partial=text)
        return True

    def _finish_with_text(self, answered: ModelAnswered, status: str, code: str) -> None:
        self._finish(status, code, content=delivery.of_text(answered.text))

    def _error(self, code: str, message: str, step_id: str) -> None:
        content: Json = {"code": code, "message": message}
        self._card(CardType.ERROR, content, f"error:{self._turn.steps}", step_id)

    def _finish(
        self,
        status: str,
        code: str,
        message: str = "",
        *,
        content: Json = None,
        partial: str = "",
        signal: HeadSignal = HeadSignal.FINISH,
    ) -> None:
        """End the turn with one deliverable and one event, and free the agent."""
        if content is None:
            content = delivery.fallback(status, code, message, partial)
        card_id = self._card(CardType.DELIVERABLE, content, "deliverable", "")
        if signal == HeadSignal.END and self.head.run_id is not None:
            self.changes.canceled_run = self.head.run_id
        self.changes.delivery = Delivery(status, card_id, code, message)
        task: dict[str, Json] = {"agent_turn_id": self._turn.id, "status": status}
        task |= {"output_box_id": self._turn.output_box_id, "deliverable_card_id": card_id}
        if code:
            task["error_code"] = code
        self.move(signal)
        self._event("state", {"status": HeadState.IDLE})
        self._event("task", task)
        _clear(self.head)

    # --- rows ---

    def _card(
        self, card_type: str, content: Json, name: str, step_id: str, call_id: str = ""
    ) -> str:
        card_id = id_within(self._turn.id, "card", name)
        self.changes.cards.append(NewCard(card_id, card_type, content, step_id, call_id))
        return card_id

    def _ended_step(self, step_id: str, status: str, tokens: int) -> None:
        self.changes.steps.append(EndedStep(step_id, status, tokens))
        self._event("step", {"step_id": step_id, "phase": status})

    def _event(self, kind: str, body: Mapping[str, Json]) -> None:
        of_turn: dict[str, Json] = {"agent_turn_id": self._turn.id, "turn_epoch": self.head.epoch}
        self.changes.events.append(NewEvent(kind, {**of_turn, **body}))


def _clear(head: Head) -> None:
    """Remove everything of the ended turn from a head that is idle."""
    head.memory_box_id = head.output_box_id
    head.turn_id = head.context_box_id = head.output_box_id = head.profile_box_id = None
    head.depth, head.trace_id, head.parent_step_id = 0, "", ""
    head.waiting, head.resume_deadline, head.run_id, head.entered = 0, None, None, 0
