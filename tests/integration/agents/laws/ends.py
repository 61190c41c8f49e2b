"""Laws of the end of turns: deliveries, stops, and the work that recovery leaves to nobody."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from flowengine.store.cards import COPIED
from flowengine.turns.states import HeadState, InboxState, MessageType
from tests.integration.agents.laws.law import AT_REST, law
from tests.integration.agents.laws.rows import Commit, Row, body_of


@law(25, "an ended turn has one task event, which names a card of its own in its output box")
def an_ended_turn_has_one_task_event(commit: Commit) -> Iterator[str]:
    rows, tasks = commit.after, defaultdict(list)
    for event in rows.events.values():
        if event.kind == "task":
            tasks[event.project_id, event.agent_turn_id].append(body_of(event))
    boxes = {(p.project_id, p.box_id, p.card_id): p for p in rows.places.values()}
    for key, turn in rows.turns.items():
        if turn.finished_at is None:
            continue
        if len(tasks[key]) != 1:
            yield f"turn {key} has {len(tasks[key])} task events"
            continue
        told = tasks[key][0]
        card_id, project = turn.deliverable_card_id, turn.project_id
        shown = (told["deliverable_card_id"], told["status"], told["output_box_id"])
        if shown != (card_id, turn.task_status, turn.output_box_id):
            yield f"turn {key} and its event differ: {shown}"
        card = rows.cards.get((project, card_id))
        if card is None or (card.type, card.agent_turn_id) != ("task.deliverable", key[1]):
            yield f"turn {key} delivers a card of another: {card}"
        place = boxes.get((project, turn.output_box_id, card_id))
        if place is None or place.agent_turn_id != key[1]:
            yield f"the deliverable of turn {key} is not in its output box"


@law(26, "every end delivers, and a turn that goes on has delivered nothing")
def every_end_delivers(commit: Commit) -> Iterator[str]:
    cards = Counter(
        (card.project_id, card.agent_turn_id)
        for card in commit.after.cards.values()
        if card.type == "task.deliverable"
    )
    for key, turn in commit.after.turns.items():
        has_ended = turn.finished_at is not None
        parts = {turn.state == "finished", turn.task_status is not None, cards[key] == 1}
        if parts != {has_ended} or cards[key] > 1:
            yield f"turn {key} has ended in part: {turn.state}, {turn.task_status}, {cards[key]}"


@law(27, "events are written by the commit of the state, and numbered without gaps")
def events_are_written_by_the_commit_of_the_state(commit: Commit) -> Iterator[str]:
    events = defaultdict(list)
    for event in commit.new("events"):
        events[event.project_id, event.agent_id].append(event)
    for key, head in commit.after.heads.items():
        known = commit.before.heads.get(key)
        first = (0 if known is None else known.event_count) + 1
        numbers = sorted(event.number for event in events[key])
        if numbers != list(range(first, head.event_count + 1)):
            yield f"{key} has new events {numbers} from {first} to {head.event_count}"
    told = {e.agent_turn_id for e in commit.new("events") if e.kind == "task"}
    for turn in commit.after.turns.values():
        known = commit.before.turn(turn)
        ends_now = turn.finished_at is not None and (known is None or known.finished_at is None)
        if ends_now and turn.agent_turn_id not in told:
            yield f"turn {turn.agent_turn_id} has ended without an event"


@law(28, "a stop ends its own turn; a turn that is stopped in the queue never runs")
def a_stop_ends_its_own_turn(commit: Commit) -> Iterator[str]:
    for message in commit.after.messages.values():
        turn = commit.after.turn(message)
        if turn is None or message.status not in (InboxState.CONSUMED, InboxState.SKIPPED):
            continue
        is_stop = message.message_type == MessageType.STOP and message.turn_epoch == 0
        if (is_stop or message.status == InboxState.SKIPPED) and turn.finished_at is None:
            yield f"turn {turn.agent_turn_id} was stopped, and goes on"
        has_run = turn.dispatched_at is not None or turn.steps > 0
        if message.status == InboxState.SKIPPED and has_run:
            yield f"turn {turn.agent_turn_id} was stopped in the queue, and has run"


@law(29, "cards enter an output box under the epoch of their turn alone")
def cards_enter_under_the_epoch_of_their_turn(commit: Commit) -> Iterator[str]:
    for place in commit.new("places"):
        box = commit.after.boxes.get((place.project_id, place.box_id))
        if box is None or box.kind != "output" or place.turn_epoch == COPIED:
            continue
        turn = commit.after.turn(place)
        if turn is None or commit.was_finished(place):
            yield f"a card of a turn that had ended: {place}"
        elif turn.dispatched_at is None:
            if place.turn_epoch != 0:
                yield f"a card of a turn that has not begun: {place}"
        elif not _epochs(commit, turn)[0] <= place.turn_epoch <= _epochs(commit, turn)[1]:
            yield f"a card of another epoch than {_epochs(commit, turn)}: {place}"
        elif place.box_id != turn.output_box_id:
            yield f"a card in the box of another: {place}"


def _epochs(commit: Commit, turn: Row) -> tuple[int, int]:
    before, after = commit.before.head(turn), commit.after.head(turn)
    return 0 if before is None else before.turn_epoch, 0 if after is None else after.turn_epoch


@law(30, "whatever died, every agent becomes idle, and no message is left", AT_REST)
def every_agent_becomes_idle(commit: Commit) -> Iterator[str]:
    for head in commit.after.heads.values():
        if head.status != HeadState.IDLE:
            yield f"{head.agent_id} is {head.status} for ever: {head}"
    for message in commit.after.messages.values():
        if message.status not in InboxState.FINAL:
            yield f"a message is left: {message}"
    for turn in commit.after.turns.values():
        if turn.finished_at is None:
            yield f"a turn has no end: {turn}"
    for step in commit.after.steps.values():
        if step.status == "started":
            yield f"a step has no end: {step}"


@law(33, "a turn that waits for a worker is neither moved nor begun again")
def a_turn_is_dispatched_once(commit: Commit) -> Iterator[str]:
    for before, after in commit.changed("turns"):
        for name in ("enqueued_at", "dispatched_at", "turn_epoch", "output_box_id", "deadline"):
            if before.dispatched_at is not None and getattr(before, name) != getattr(after, name):
                yield f"{name} of turn {after.agent_turn_id} was changed"
        if before.started_at is not None and before.started_at != after.started_at:
            yield f"turn {after.agent_turn_id} was started again"
