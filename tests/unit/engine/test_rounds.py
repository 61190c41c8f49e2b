"""Rounds: the calls of a facet that calls itself, as a flat list."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from flowengine.engine.rounds import Round, Rounds
from flowengine.evaluator.states import ObjectType, StepState

DONE, FAILED = StepState.COMPLETE, StepState.ERROR


@dataclass(frozen=True)
class Row:
    key: str
    parent: str | None
    facet: str = ""  #: of a call
    object_type: str = ObjectType.CALL
    state: str = DONE
    address: str = ""
    created: int = 0
    updated: int = 0


def rounds_of(*rows: Row) -> Rounds[Row]:
    children: defaultdict[str | None, list[Row]] = defaultdict(list)
    for row in rows:
        children[row.parent].append(row)
    return Rounds(children, lambda row: row.facet)


def loop(count: int, failed: int = 0) -> list[Row]:
    """A loop: round n is `n`, its block `bn`. The last round also has a block."""
    rows = []
    for n in range(1, count + 1):
        state = FAILED if n <= failed else DONE
        parent = f"b{n - 1}" if n > 1 else None
        rows.append(Row(f"{n}", parent, "t.Loop", state=state, created=n, updated=100 - n))
        rows.append(Row(f"b{n}", f"{n}", "", ObjectType.BLOCK, address="t.Loop/0", created=10 * n))
    return rows


def shown(rounds: Rounds[Row], step: Row, first: int = 2, last: int = 1) -> list[object]:
    """The numbers of the rounds; those that are hidden in lists."""
    return [
        each.number if isinstance(each, Round) else [one.number for one in each]
        for each in rounds.of(step, first, last)
    ]


def test_the_calls_of_a_loop_are_listed_below_the_outermost_one() -> None:
    rows = loop(3)
    rounds = rounds_of(*rows)
    assert shown(rounds, rows[0]) == [1, 2, 3]
    assert [rounds.is_elsewhere(row) for row in rows if row.facet] == [False, True, True]
    assert [shown(rounds, row) for row in rows if row.facet][1:] == [[], []]


def test_rounds_in_the_middle_of_a_long_loop_are_hidden() -> None:
    rows = loop(6)
    assert shown(rounds_of(*rows), rows[0]) == [1, 2, [3, 4, 5], 6]
    assert rounds_of(*rows).of(rows[0], 1, 0)[0].name == "round 1"  # type: ignore[union-attr]


def test_the_round_that_made_the_others_fail_is_shown_and_named() -> None:
    rows = loop(6, failed=4)
    rounds = rounds_of(*rows)
    assert shown(rounds, rows[0]) == [1, 2, [3], 4, [5], 6]
    found = [each for each in rounds.of(rows[0], 6, 0) if isinstance(each, Round)]
    assert [each.failed_in for each in found] == [4, 4, 4, 4, None, None]


def test_a_facet_that_calls_itself_twice_is_no_loop() -> None:
    rows = [*loop(1), Row("left", "b1", "t.Loop"), Row("right", "b1", "t.Loop")]
    rounds = rounds_of(*rows)
    assert shown(rounds, rows[0]) == []
    assert not any(rounds.is_elsewhere(row) for row in rows)


def test_a_call_with_a_body_of_its_own_begins_no_loop() -> None:
    outer = Row("1", None, "t.Loop")
    own = Row("b1", "1", "", ObjectType.BLOCK, address="t.Flow/0")
    assert shown(rounds_of(outer, own, Row("2", "b1", "t.Loop")), outer) == []


def test_branches_to_the_next_round_are_frames_and_their_other_cases_are_left_out() -> None:
    outer = Row("1", None, "t.Loop")
    when = Row("when", "1", "", ObjectType.WHEN, address="t.Loop/0")
    taken = Row("taken", "when", "", ObjectType.CASE)
    other = Row("other", "when", "", ObjectType.CASE, state=StepState.SKIPPED)
    inner = Row("2", "taken", "t.Loop")
    rounds = rounds_of(outer, when, taken, other, inner)
    assert shown(rounds, outer) == [1, 2]
    assert rounds.is_frame(taken)
    assert not rounds.is_frame(inner)
    assert rounds.is_elsewhere(other)
    assert not rounds.is_elsewhere(taken)


def test_the_own_time_of_a_round_leaves_out_the_rounds_inside_it() -> None:
    def block(key: str, parent: str, created: int) -> Row:
        return Row(key, parent, "", ObjectType.BLOCK, address="t.Loop/0", created=created)

    outer = Row("1", None, "t.Loop", created=0, updated=1000)
    before = Row("before", "b1", "t.Work", created=10, updated=40)
    inner = Row("2", "b1", "t.Loop", created=10, updated=600)
    after = Row("after", "b1", "t.Work", created=10, updated=650)
    rows = (outer, block("b1", "1", 10), before, inner, block("b2", "2", 100), after)
    found = rounds_of(*rows).of(outer, 2, 0)
    # From 10, when its block was created, to 100, when the next began; then 50 after its end.
    assert [each.own_time for each in found if isinstance(each, Round)] == [90 + 50, 500]


def test_a_round_that_goes_on_has_no_time_yet() -> None:
    rows = loop(1)
    inner = Row("2", "b1", "t.Loop", state=StepState.EVENT_TRANSMIT)
    found = rounds_of(*rows, inner).of(rows[0], 2, 0)
    assert isinstance(found[-1], Round)
    assert found[-1].own_time is None


def test_thousands_of_nested_rounds_need_no_deeper_stack() -> None:
    rows = loop(5000)
    assert shown(rounds_of(*rows), rows[0], 1, 1) == [1, list(range(2, 5000)), 5000]
