"""Laws of tool calls: their results, their deadlines, and the turns that wait for them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import groupby

from flowengine.turns.states import AfterExecution, InboxState, MessageType, TaskStatus
from tests.integration.agents.laws.law import law
from tests.integration.agents.laws.rows import Commit, Key, Row, Rows, content_of

_STATUS_OF = {"expired": TaskStatus.TIMEOUT, "dropped": TaskStatus.CANCELED}


@law(17, "a call is requested once and answered once")
def a_call_is_requested_and_answered_once(commit: Commit) -> Iterator[str]:
    rows = commit.after
    results = Counter(
        (card.project_id, card.tool_call_id)
        for card in rows.cards.values()
        if card.type == "tool.result"
    )
    # Calls in place have no run of their own: they name that of the model call.
    of_models = {None, *(step.run_id for step in rows.steps.values())}
    runs = Counter(c.run_id for c in rows.calls.values() if c.run_id not in of_models)
    yield from (f"run {run_id} is of {count} calls" for run_id, count in runs.items() if count > 1)
    for call in rows.calls.values():
        key = (call.project_id, call.tool_call_id)
        has_ended = call.wait_status != "waiting"
        if results[key] != has_ended:
            yield f"call {key} is {call.wait_status}, and has {results[key]} results"
        if (*key, "tool_call", "request") not in rows.edges:
            yield f"call {key} was not requested"
        if ((*key, "report", "response") in rows.edges) != has_ended:
            yield f"call {key} is {call.wait_status}, and its report is recorded otherwise"


@law(18, "a result is applied where its call is waited for, and nowhere else")
def a_result_is_applied_where_it_is_waited_for(commit: Commit) -> Iterator[str]:
    for before, after in commit.changed("calls"):
        if before.wait_status != "waiting":
            yield f"an ended call was changed: {before} became {after}"
    calls = {(call.project_id, call.tool_call_id): call for call in commit.after.calls.values()}
    asked = {
        (card.project_id, card.tool_call_id)
        for card in commit.new("cards")
        if card.type == "tool.call"
    }
    for card in commit.new("cards"):
        if card.type != "tool.result":
            continue
        key = (card.project_id, card.tool_call_id)
        call = calls.get(key)
        if call is None:
            if key not in asked:  # one that was refused is answered at once
                yield f"a result of no call: {card}"
            continue
        before = commit.before.calls.get((call.project_id, call.agent_turn_id, call.tool_call_id))
        # One commit may take in an answer that makes the call, and a stop that ends it.
        if key not in asked and (before is None or before.wait_status != "waiting"):
            yield f"a result of a call that nobody waited for: {card}"
        if call.agent_turn_id != card.agent_turn_id:
            yield f"a result in another turn than its call: {card}"


@law(19, "a turn resumes once, after the results of all its calls")
def a_turn_resumes_after_all_its_calls(commit: Commit) -> Iterator[str]:
    rows = commit.after
    steps: defaultdict[Key, list[Row]] = defaultdict(list)
    for step in rows.steps.values():
        steps[step.project_id, step.agent_turn_id].append(step)
    for key, turn in rows.turns.items():
        own = sorted(steps[key], key=lambda step: step.number)
        if [step.number for step in own] != list(range(1, turn.steps + 1)):
            yield f"turn {key} counts {turn.steps} steps of {[step.number for step in own]}"
        # A run makes one model call, or several of them in place, one after the other.
        if len({step.run_id for step in own}) < len(list(groupby(step.run_id for step in own))):
            yield f"turn {key} has steps of another run between those of one run"
        last = own[-1].step_id if own else ""
        for call in rows.calls.values():
            is_own = (call.project_id, call.agent_turn_id) == key
            if is_own and call.wait_status == "waiting" and call.step_id != last:
                yield f"turn {key} went on without the result of {call.tool_call_id}"
    for before, after in commit.kept("heads"):
        is_same = before.active_agent_turn_id == after.active_agent_turn_id
        if is_same and (before.status, after.status) == ("suspended", "running"):
            begun = [
                s for s in commit.new("steps") if s.agent_turn_id == after.active_agent_turn_id
            ]
            if len(begun) != 1:
                yield f"{after.agent_id} resumed with {len(begun)} steps"


@law(20, "of a result and a timeout one wins, and the other is taken in without error")
def of_a_result_and_a_timeout_one_wins(commit: Commit) -> Iterator[str]:
    results = commit.after.result_cards()
    for call in commit.after.calls.values():
        card = results.get((call.project_id, call.tool_call_id))
        if call.wait_status == "waiting" or card is None:
            continue
        shown = content_of(card)["status"]
        if shown != _STATUS_OF.get(call.wait_status, call.ending):
            yield f"call {call.tool_call_id} is {call.wait_status}, and its result {shown}"
    for message in commit.after.messages.values():
        is_refused = message.status in (InboxState.ERROR, InboxState.DEFERRED)
        if message.message_type not in MessageType.REPORTS or not is_refused:
            continue
        if commit.after.turn(message) and message.inbox_id not in commit.told.unreadable:
            yield f"a report is refused: {message}"


@law(21, "a call keeps its deadline, and an agent waits for the earliest one")
def a_call_keeps_its_deadline(commit: Commit) -> Iterator[str]:
    for before, after in commit.changed("calls"):
        if before.deadline != after.deadline and before.approval == after.approval:
            yield f"the deadline of {after.tool_call_id} was moved"
    for head in commit.after.heads.values():
        if head.status != "suspended":
            continue
        turn = commit.after.active_turn(head)
        assert turn is not None
        deadlines = [call.deadline for call in commit.after.open_calls(head)] + [turn.deadline]
        earliest = min((each for each in deadlines if each is not None), default=None)
        if head.resume_deadline != earliest:
            yield f"{head.agent_id} waits until {head.resume_deadline}, not {earliest}"


@law(22, "a commit is of one agent: a message that cannot be taken in harms its own turn alone")
def a_commit_is_of_one_agent(commit: Commit) -> Iterator[str]:
    changed = {(head.project_id, head.agent_id) for head, _ in commit.changed("heads")}
    if len(changed) > 1:
        yield f"one commit has changed {sorted(changed)}"
    for before, after in commit.changed("messages"):
        is_refused = after.status in (InboxState.ERROR, InboxState.DEFERRED)
        if is_refused and changed - {(after.project_id, after.agent_id)}:
            yield f"message {before.inbox_id} was refused, and changed {changed}"


@law(23, "ids of calls are the engine's own: the ids of models may repeat")
def ids_of_calls_are_the_engines_own(commit: Commit) -> Iterator[str]:
    seen: dict[Key, str] = {}
    for call in commit.after.calls.values():
        key = (call.project_id, call.tool_call_id)
        if call.tool_call_id == call.model_call_id:
            yield f"call {key} has the id of the model"
        if seen.setdefault(key, call.agent_turn_id) != call.agent_turn_id:
            yield f"call {key} is of two turns"


@law(24, "a result that ends the turn ends it when all results are there")
def a_result_that_ends_the_turn_ends_it(commit: Commit) -> Iterator[str]:
    for suspension in _suspensions(commit.after):
        turn = commit.after.turn(suspension[0])
        if turn is None or any(call.wait_status not in _ANSWERED for call in suspension):
            continue
        ending = [c for c in suspension if c.after_execution == AfterExecution.TERMINATE]
        if ending and turn.finished_at is None:
            yield f"turn {turn.agent_turn_id} goes on after {ending[0].tool_name}"
        bad = [call.ending for call in ending if call.ending != TaskStatus.SUCCESS]
        if ending and turn.task_status not in (bad or [TaskStatus.SUCCESS]):
            yield f"turn {turn.agent_turn_id} ended as {turn.task_status}, and its call {bad}"
    for call in commit.after.calls.values():
        if call.after_execution not in AfterExecution.ALL:
            yield f"call {call.tool_call_id} has after_execution {call.after_execution!r}"


_ANSWERED = ("applied", "expired")


def _suspensions(rows: Rows) -> Iterator[list[Row]]:
    """The calls of each answer of a model."""
    found: defaultdict[Key, list[Row]] = defaultdict(list)
    for call in rows.calls.values():
        found[call.project_id, call.agent_turn_id, call.step_id].append(call)
    yield from (sorted(calls, key=lambda call: call.position) for calls in found.values())
