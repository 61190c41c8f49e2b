"""Laws of messages: turns that wait, and messages that are taken in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from flowengine.turns.states import INBOX_TRANSITIONS, InboxState, MessageType
from tests.integration.agents.laws.law import AFTER_RECOVERY, law
from tests.integration.agents.laws.rows import Commit, Row, Rows


@law(7, "each accepted message is one turn, and only ended turns are removed")
def each_accepted_message_is_one_turn(commit: Commit) -> Iterator[str]:
    told, rows = commit.told, commit.after
    for key, turn_id in told.accepted.items():
        turn = (key[0], turn_id)
        if turn not in rows.turns and turn not in told.removed:
            yield f"the turn of message {key} is lost"
    for turn_key, turn in rows.turns.items():
        asked = (turn.project_id, turn.agent_id, turn.correlation_id)
        if turn.waiting_run_id is None and asked not in told.asked:
            yield f"nobody has asked for turn {turn_key}"
    for turn_key in commit.before.turns.keys() - rows.turns.keys():
        if commit.before.turns[turn_key].finished_at is None:
            yield f"turn {turn_key} was removed before its end"


@law(8, "the turns of an agent begin in the order of their messages")
def turns_begin_in_order(commit: Commit) -> Iterator[str]:
    places = {key: place for place, key in enumerate(commit.told.order)}
    for key, turns in commit.after.by_agent("turns").items():
        places_of = {t.agent_turn_id: places[t.project_id, t.agent_turn_id] for t in turns}
        begun = [turn for turn in turns if turn.dispatched_at is not None]
        begun.sort(key=lambda turn: turn.turn_epoch)
        in_order = [places_of[turn.agent_turn_id] for turn in begun]
        if in_order != sorted(in_order):
            yield f"{key}: {in_order}"
        waiting = [places_of[turn.agent_turn_id] for turn in turns if turn.state == "queued"]
        if waiting and in_order and min(waiting) < max(in_order):
            yield f"a later turn of {key} has begun before one that waits"


@law(9, "after a pass of recovery no idle agent has a turn that waits", AFTER_RECOVERY)
def no_idle_agent_has_a_waiting_turn(commit: Commit) -> Iterator[str]:
    for message in commit.after.messages.values():
        head = commit.after.head(message)
        if message.status == InboxState.QUEUED and (head is None or head.status == "idle"):
            yield f"turn {message.agent_turn_id} waits for an idle agent"


@law(10, "a key is one turn of one agent of one project")
def a_key_is_one_turn(commit: Commit) -> Iterator[str]:
    keys = Counter(
        (turn.project_id, turn.agent_id, turn.correlation_id)
        for turn in commit.after.turns.values()
    )
    for key, count in keys.items():
        turn_id = commit.told.accepted.get(key)
        if count > 1:
            yield f"{key} has {count} turns"
        there = commit.after.turns.keys() | commit.told.removed
        if turn_id is not None and (key[0], turn_id) not in there:
            yield f"{key} has another turn than its caller was told"


@law(11, "a message is of a turn of its agent, or it is an error and changes nothing")
def a_message_is_of_a_turn(commit: Commit) -> Iterator[str]:
    for message in commit.after.messages.values():
        turn = commit.after.turn(message)
        is_known = turn is not None and turn.agent_id == message.agent_id
        if message.status == InboxState.CONSUMED and not is_known:
            yield f"a message of no turn was taken in: {message}"
    for turn in commit.after.turns.values():
        key = (turn.project_id, turn.agent_turn_id, "enqueue", "request")
        if key not in commit.after.edges:
            yield f"turn {turn.agent_turn_id} was not enqueued"


@law(12, "a wake-up carries nothing: a turn has one message that began it, however often it rings")
def a_turn_has_one_message_that_began_it(commit: Commit) -> Iterator[str]:
    starts = Counter(
        (message.project_id, message.agent_turn_id)
        for message in commit.after.messages.values()
        if message.message_type in MessageType.STARTS
    )
    for key, turn in commit.after.turns.items():
        if starts[key] != 1:
            yield f"turn {turn.agent_turn_id} has {starts[key]} messages that begin it"


@law(13, "a message is taken in once: its states follow the table, and a final one stays")
def a_message_is_taken_in_once(commit: Commit) -> Iterator[str]:
    for before, after in commit.changed("messages"):
        # One commit may dispatch a turn and end it.
        ways = INBOX_TRANSITIONS[before.status]
        behind = {state for way in ways for state in INBOX_TRANSITIONS[way]}
        if before.status in InboxState.FINAL or after.status not in ways | behind:
            yield f"message {before.inbox_id} went {before.status} > {after.status}"
        if (after.processed_at is not None) != (after.status in InboxState.FINAL):
            yield f"message {after.inbox_id} is {after.status}, processed {after.processed_at}"


@law(14, "the due messages of an agent are taken in by their time")
def messages_are_taken_in_by_their_time(commit: Commit) -> Iterator[str]:
    taken = [
        before
        for before, after in commit.changed("messages")
        if after.status == InboxState.CONSUMED and before.message_type not in MessageType.STARTS
    ]
    for message in taken:
        for other in commit.before.messages.values():
            if not _is_due(other, commit) or _order(other) >= _order(message):
                continue
            is_left = commit.after.messages[other.project_id, other.inbox_id].status == other.status
            same = (other.project_id, other.agent_id) == (message.project_id, message.agent_id)
            if same and is_left:
                yield f"{message.inbox_id} was taken in before {other.inbox_id}"


def _order(message: Row) -> tuple[int, int, str]:
    return (message.next_retry_at, message.created_at, message.inbox_id)


def _is_due(message: Row, commit: Commit) -> bool:
    return (
        message.status in InboxState.DUE
        and message.message_type not in MessageType.STARTS
        and message.next_retry_at <= commit.now
    )


@law(15, "a message and its effect are one commit: a death leaves both or neither")
def a_message_and_its_effect_are_one_commit(commit: Commit) -> Iterator[str]:
    for before, after in commit.changed("messages"):
        if after.status == InboxState.CONSUMED:
            yield from _without_effect(commit.before, commit.after, before)


def _without_effect(before: Rows, after: Rows, message: Row) -> Iterator[str]:
    head, now = before.head(message), after.head(message)
    if head is None or now is None or head.active_agent_turn_id != message.agent_turn_id:
        return
    match message.message_type:
        case MessageType.MODEL_RESULT:
            step = before.steps.get((message.project_id, message.correlation_id))
            if step is not None and head.model_run_id == step.run_id == now.model_run_id:
                yield f"an answer was taken in without effect: {message.inbox_id}"
        case MessageType.TOOL_RESULT | MessageType.TIMEOUT:
            call = (message.project_id, message.agent_turn_id, message.correlation_id)
            if call in after.calls and after.calls[call].wait_status == "waiting":
                yield f"a report was taken in without effect: {message.inbox_id}"
        case MessageType.STOP if message.turn_epoch <= head.turn_epoch:
            if after.turns[message.project_id, message.agent_turn_id].finished_at is None:
                yield f"a stop was taken in without effect: {message.inbox_id}"


@law(16, "a message that is put off is not taken in before its time, and is counted")
def a_message_that_is_put_off_waits(commit: Commit) -> Iterator[str]:
    for before, after in commit.changed("messages"):
        deferrals = after.retry_count - before.retry_count
        if deferrals != (after.status == InboxState.DEFERRED):
            yield f"message {after.inbox_id} counts {deferrals} more deferrals"
        if before.status == InboxState.DEFERRED and before.next_retry_at > commit.now:
            yield f"message {after.inbox_id} was taken in before {before.next_retry_at}"
        if after.status == InboxState.DEFERRED and after.next_retry_at <= commit.now:
            yield f"message {after.inbox_id} was put off to the past"
    for message in commit.after.messages.values():
        turn = commit.after.turn(message)
        fits = turn is not None and turn.agent_id == message.agent_id
        if message.status != InboxState.ERROR or message.message_type not in MessageType.ALL:
            continue
        if turn is not None and fits and turn.finished_at is None:
            yield f"message {message.inbox_id} was given up, and its turn goes on"
