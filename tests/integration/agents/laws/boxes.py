"""Laws of turns inside each other, of joins, and of boxes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from flowengine.evaluator.records import id_within
from flowengine.store.cards import COPIED
from flowengine.turns.joins import Ended, join_status
from flowengine.turns.states import TaskStatus
from tests.integration.agents.laws.law import law
from tests.integration.agents.laws.rows import Commit, Row, content_of

_ENDED_BY_JOIN = ("join_deadline", "join_failed")


@law(34, "the parent of a join gets one result, in the order of the tasks, with their status")
def a_join_has_one_result_in_order(commit: Commit) -> Iterator[str]:
    for call, result in _join_results(commit):
        outcomes = result["results"]
        if [each["task_index"] for each in outcomes] != list(range(len(outcomes))):
            yield f"the results of {call.tool_call_id} are not in order"
        ends = [Ended(each["status"], each["error_code"]) for each in outcomes]
        allowed = {join_status(ends, fail_fast=fail_fast) for fail_fast in (False, True)}
        if result["status"] not in allowed:
            yield f"the status of {call.tool_call_id} is {result['status']}, not {allowed}"


@law(35, "the end of a turn is written for the step that waits for it by the same commit")
def an_end_is_told_by_the_same_commit(commit: Commit) -> Iterator[str]:
    for turn in commit.after.turns.values():
        known = commit.before.turn(turn)
        ends_now = turn.finished_at is not None and (known is None or known.finished_at is None)
        is_told = id_within(turn.agent_turn_id, "ended") in commit.after.facts
        if ends_now and turn.waiting_run_id is not None and not is_told:
            yield f"nobody is told of the end of turn {turn.agent_turn_id}"


@law(36, "a join that has ended has no turn that goes on or begins")
def a_join_that_has_ended_has_no_turn(commit: Commit) -> Iterator[str]:
    ended = {
        (edge.project_id, edge.correlation_id)
        for edge in commit.after.edges.values()
        if (edge.primitive, edge.edge_phase) == ("join", "response")
    }
    for turn in commit.after.turns.values():
        if (turn.project_id, turn.waiting_run_id) in ended and turn.finished_at is None:
            yield f"turn {turn.agent_turn_id} goes on after its join"
        if turn.error_code in _ENDED_BY_JOIN and turn.dispatched_at is None and turn.steps:
            yield f"turn {turn.agent_turn_id} began after its join"
    for call, result in _join_results(commit):
        if (call.project_id, call.run_id) not in ended:
            yield f"call {call.tool_call_id} has the result of a join that goes on: {result}"


def _join_results(commit: Commit) -> Iterator[tuple[Row, dict[str, object]]]:
    """The joins that this commit has given to their parents."""
    cards = commit.after.result_cards()
    for before, call in commit.changed("calls"):
        card = cards.get((call.project_id, call.tool_call_id))
        if call.tool_name not in commit.told.waits or before.wait_status != "waiting":
            continue
        content = None if card is None else content_of(card)
        if content and content["status"] == TaskStatus.SUCCESS and content["result"] != "outside":
            yield call, content["result"]


@law(37, "a parent waits longer for its join than the join for its tasks")
def a_parent_waits_longer_than_its_join(commit: Commit) -> Iterator[str]:
    for call in commit.new("calls"):
        least = commit.told.waits.get(call.tool_name)
        if least is not None and call.deadline - call.created_at < 1000 * least:
            yield f"call {call.tool_call_id} waits {call.deadline - call.created_at} ms"


@law(38, "a turn is one deeper than the turn that asked for it, and the depth has a limit")
def a_turn_is_one_deeper_than_its_parent(commit: Commit) -> Iterator[str]:
    for turn in commit.new("turns"):
        parent = commit.after.turns.get((turn.project_id, turn.parent_turn_id))
        wanted = 0 if turn.parent_turn_id is None else None
        if parent is not None:
            wanted = parent.recursion_depth + 1
        if wanted is not None and turn.recursion_depth != wanted:
            yield f"turn {turn.agent_turn_id} has depth {turn.recursion_depth}, not {wanted}"
        if turn.recursion_depth >= commit.told.max_depth:
            yield f"turn {turn.agent_turn_id} is too deep"
    for edge in commit.new("edges"):
        turn = commit.after.turn(edge)
        if turn is not None and edge.recursion_depth != turn.recursion_depth:
            yield f"an edge of another depth than its turn: {edge}"


@law(39, "a context box is written with its turn, and never again")
def a_context_box_is_written_once(commit: Commit) -> Iterator[str]:
    for place in commit.new("places"):
        key = (place.project_id, place.box_id)
        box = commit.before.boxes.get(key)
        if box is not None and box.kind == "context":
            yield f"a context box has a new card: {place}"
    for key, before in commit.before.places.items():
        box = commit.after.boxes.get((before.project_id, before.box_id))
        if box is not None and box.kind == "context" and key not in commit.after.places:
            yield f"a context box has lost a card: {before}"


@law(40, "no two active turns have the same output box")
def no_two_active_turns_share_a_box(commit: Commit) -> Iterator[str]:
    boxes = Counter(
        (head.project_id, head.output_box_id)
        for head in commit.after.heads.values()
        if head.status != "idle"
    )
    yield from (f"box {box} has {count} writers" for box, count in boxes.items() if count > 1)


@law(
    41, "a box is appended to; a copy has the first cards of its source, and later ones do not leak"
)
def a_copy_is_a_box_of_its_own(commit: Commit) -> Iterator[str]:
    for before, after in commit.changed("places"):
        yield f"a place was changed: {before} became {after}"
    contents = commit.after.boxes_with_places()
    for key, places in contents.items():
        if [place.position for place in places] != list(range(len(places))):
            yield f"box {key} has gaps"
    copied: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for place in commit.new("places"):
        if place.turn_epoch == COPIED:
            copied[place.project_id, place.box_id].append(place)
    for key, places in copied.items():
        box = commit.after.boxes.get(key)
        if key in commit.before.boxes or box is None:
            yield f"cards were copied into a box that was there: {key}"
            continue
        source = contents.get((key[0], box.parent_box_id), [])
        wanted = [place.card_id for place in source[: len(places)]]
        ids = [place.card_id for place in sorted(places, key=lambda place: place.position)]
        if ids != wanted:
            yield f"box {key} is no copy of {box.parent_box_id}"
