"""The state machines: a transition that is not drawn cannot happen."""

from __future__ import annotations

import itertools

import pytest

from flowengine.errors import IllegalTransition
from flowengine.evaluator.fixed_point import HANDLERS
from flowengine.evaluator.states import (
    BLOCK_TRANSITIONS,
    EVENT_CHANGES,
    EVENT_TRANSITIONS,
    MACHINES,
    STEP_TRANSITIONS,
    SYS_TRANSITIONS,
    TASK_TRANSITIONS,
    EventState,
    ObjectType,
    RunState,
    Signal,
    StepState,
    Table,
    TaskState,
    event_state,
    next_state,
)


def names_in(states: type) -> set[str]:
    return {
        value for name, value in vars(states).items() if isinstance(value, str) and name[0] != "_"
    }


MACHINE_OF_EACH = {"step": STEP_TRANSITIONS, "block": BLOCK_TRANSITIONS, "sys": SYS_TRANSITIONS}
machine = pytest.mark.parametrize("table", MACHINE_OF_EACH.values(), ids=list(MACHINE_OF_EACH))


def test_every_state_of_a_step_has_a_row_in_some_machine() -> None:
    drawn = {state for table in MACHINE_OF_EACH.values() for state in table}
    assert drawn == names_in(StepState) - {"FINAL"}


def test_every_kind_of_row_has_a_machine() -> None:
    assert set(MACHINES) == names_in(ObjectType)


@machine
def test_every_state_that_can_be_reached_has_a_row(table: Table) -> None:
    assert {state for row in table.values() for state in row.values()} <= set(table)


@machine
def test_every_state_can_be_reached_from_the_first(table: Table) -> None:
    reached, ahead = {StepState.CREATED}, [StepState.CREATED]
    while ahead:
        new = set(table[ahead.pop()].values()) - reached
        reached |= new
        ahead += new
    assert reached == set(table)


@machine
def test_the_rows_of_final_states_are_there_and_empty(table: Table) -> None:
    for state in StepState.FINAL:
        assert table[state] == {}


@machine
def test_every_other_state_can_advance_fail_and_be_skipped(table: Table) -> None:
    for state in table.keys() - StepState.FINAL:
        assert {Signal.ADVANCE, Signal.FAIL, Signal.SKIP} <= set(table[state])
        assert table[state][Signal.FAIL] == StepState.ERROR
        assert table[state][Signal.SKIP] == StepState.SKIPPED


@machine
def test_advancing_ends_at_complete_and_never_goes_round(table: Table) -> None:
    state, passed = StepState.CREATED, [StepState.CREATED]
    while table[state]:
        state = table[state][Signal.ADVANCE]
        passed.append(state)
    assert state == StepState.COMPLETE
    assert len(passed) == len(set(passed))


def test_an_answer_is_taken_at_the_event_and_nowhere_else() -> None:
    takers = [state for state, row in STEP_TRANSITIONS.items() if Signal.CONTINUE in row]
    assert takers == [StepState.EVENT_TRANSMIT]


@pytest.mark.parametrize("object_type", list(MACHINES))
def test_a_final_state_is_never_left(object_type: str) -> None:
    for state, signal in itertools.product(sorted(StepState.FINAL), Signal):
        with pytest.raises(IllegalTransition):
            next_state(object_type, "W.s", state, signal)


def test_an_illegal_transition_names_the_row_the_state_and_the_signal() -> None:
    with pytest.raises(IllegalTransition) as caught:
        next_state(ObjectType.CALL, "W.s", StepState.CREATED, Signal.CONTINUE)
    assert str(caught.value) == "W.s is state.statement.Created and has no transition for continue"


def test_a_state_of_another_machine_is_illegal() -> None:
    with pytest.raises(IllegalTransition):
        next_state(ObjectType.BLOCK, "W", StepState.EVENT_TRANSMIT, Signal.ADVANCE)


def test_every_handler_belongs_to_a_state_that_is_not_final() -> None:
    drawn = {state for table in MACHINE_OF_EACH.values() for state in table}
    assert set(HANDLERS) <= drawn - StepState.FINAL


def test_every_state_of_a_task_has_a_row_and_ended_tasks_stay_ended() -> None:
    assert set(TASK_TRANSITIONS) == names_in(TaskState)
    for state, following in TASK_TRANSITIONS.items():
        assert following <= set(TASK_TRANSITIONS)
        assert bool(following) == (state in TaskState.OPEN)


def test_every_state_of_an_event_has_a_row_and_ended_events_stay_ended() -> None:
    assert set(EVENT_CHANGES) == names_in(EventState)
    for state, following in EVENT_CHANGES.items():
        assert following <= set(EVENT_CHANGES)
        assert bool(following) != EventState.is_terminal(state)
    for state, following in EVENT_TRANSITIONS.items():
        assert following in EVENT_CHANGES[state]


@pytest.mark.parametrize(
    ("step", "task", "event"),
    [
        (StepState.EVENT_TRANSMIT, TaskState.PENDING, EventState.DISPATCHED),
        (StepState.EVENT_TRANSMIT, TaskState.RUNNING, EventState.PROCESSING),
        (StepState.EVENT_TRANSMIT, TaskState.COMPLETED, EventState.COMPLETED),
        (StepState.COMPLETE, TaskState.CANCELED, EventState.COMPLETED),
        (StepState.BLOCKS_CONTINUE, TaskState.COMPLETED, EventState.COMPLETED),
        (StepState.ERROR, TaskState.FAILED, EventState.ERROR),
        (StepState.ERROR, TaskState.COMPLETED, EventState.COMPLETED),  # its body failed
        (StepState.CANCELLED, TaskState.CANCELED, EventState.ERROR),
        (StepState.EVENT_TRANSMIT, TaskState.CANCELED, EventState.ERROR),  # superseded
    ],
)
def test_an_event_is_where_its_step_and_its_last_try_are(step: str, task: str, event: str) -> None:
    assert event_state(step, task) == event


def test_the_final_states_agree_with_the_tables() -> None:
    for state in STEP_TRANSITIONS:
        assert (state in StepState.FINAL) == (not STEP_TRANSITIONS[state])
    assert RunState.RUNNING not in RunState.FINAL
