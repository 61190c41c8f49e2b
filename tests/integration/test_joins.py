"""Joins: tasks that enable nothing alone are counted, and evaluated once. A chord is a hint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from sqlalchemy import event, text

from flowengine import event_facet, foreach, workflow
from flowengine.dispatch import Group, NullNotifier
from flowengine.engine import Run
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Failed, Lost, Succeeded
from flowengine.store.claims import WorkerIdentity
from flowengine.store.reports import Reports
from flowengine.testing import Flow
from tests.integration.engines import replace_notifier, watched
from tests.servers import PostgresServer


@event_facet
def square(n: int) -> int:
    return n * n


@event_facet
def add_up(numbers: list[int]) -> int:
    return sum(numbers)


@workflow
def squares(numbers: list[int]) -> int:
    return add_up(foreach(numbers, lambda n: square(n)))


@workflow
def two_each(numbers: list[int]) -> int:
    return add_up(foreach(numbers, lambda n: square(square(n))))


@event_facet(task_list="gpu")
def square_elsewhere(n: int) -> int:
    return n * n


@workflow
def on_two_lists(n: int) -> int:
    return add_up([*(square(n) for _ in range(9)), *(square_elsewhere(n) for _ in range(9))])


class GroupRecorder(NullNotifier):
    """Sends nothing and records the groups."""

    def __init__(self) -> None:
        self.groups: list[Group] = []

    def dispatch_groups(self, run_id: str, groups: Iterable[Group]) -> None:
        self.groups += groups


@pytest.fixture
def notifier() -> GroupRecorder:
    return GroupRecorder()


@pytest.fixture
def flow(database_url: str, notifier: GroupRecorder) -> Iterator[Flow]:
    with Flow(store_url=database_url) as flow:
        replace_notifier(flow.engine, notifier)
        yield flow


def claim(flow: Flow, task_id: str, task_list: str = "default") -> TaskDefinition:
    task = flow.engine.claim_one(task_id, task_list, WorkerIdentity())
    assert task is not None
    return task


def answer(flow: Flow, task_id: str, task_list: str = "default", *, in_chord: bool = True) -> None:
    task = claim(flow, task_id, task_list)
    assert task.data is not None
    result = Succeeded({"result": task.data["n"] ** 2})
    assert flow.engine.report(task, result, in_chord=in_chord)


def evaluations(flow: Flow, run: Run[int]) -> int:
    with flow.database.read() as connection:
        query = text("SELECT count(*) FROM flowengine_history WHERE run_id = :run")
        return int(connection.execute(query, {"run": run.id}).scalar_one())


def finish(flow: Flow, run: Run[int], expected: int) -> None:
    flow.settle()
    assert run.result(timeout=0) == expected


NUMBERS = list(range(40))
EXPECTED = sum(n * n for n in NUMBERS)


def test_a_fan_out_is_one_group_and_its_reports_touch_the_run_once(
    flow: Flow, notifier: GroupRecorder
) -> None:
    run = flow.start(squares, NUMBERS)
    (group,) = notifier.groups
    assert len(group.task_ids) == 40
    before = evaluations(flow, run)
    for task_id in group.task_ids:
        answer(flow, task_id)
    assert evaluations(flow, run) == before, "counted, not evaluated"
    flow.engine.advance(run.id)  # the chord's callback
    assert evaluations(flow, run) == before + 1
    finish(flow, run, EXPECTED)


def test_a_join_over_two_task_lists_has_a_group_in_each(
    flow: Flow, notifier: GroupRecorder
) -> None:
    run = flow.start(on_two_lists, 3)
    groups = {group.task_list: group.task_ids for group in notifier.groups}
    assert {name: len(found) for name, found in groups.items()} == {"default": 9, "gpu": 9}
    of_list = {task.uuid: task.task_list_name for task in flow.engine.tasks(run.id)}
    assert all(of_list[task_id] == name for name, found in groups.items() for task_id in found)
    before = evaluations(flow, run)
    for task_id in (*groups["default"], *groups["gpu"]):
        answer(flow, task_id, of_list[task_id], in_chord=False)
    assert evaluations(flow, run) == before + 1, "one join: the last of all evaluates"
    finish(flow, run, 18 * 9)


def test_a_foreach_of_many_portions_is_still_one_group(flow: Flow, notifier: GroupRecorder) -> None:
    flow.start(squares, list(range(600)))
    (group,) = notifier.groups
    assert len(group.task_ids) == len(set(group.task_ids)) == 600


def test_without_a_chord_the_last_reporter_evaluates(flow: Flow, notifier: GroupRecorder) -> None:
    run = flow.start(squares, NUMBERS)
    before = evaluations(flow, run)
    for task_id in notifier.groups[0].task_ids:
        answer(flow, task_id, in_chord=False)
    assert evaluations(flow, run) == before + 1
    finish(flow, run, EXPECTED)


def test_a_lost_callback_costs_two_ticks_of_the_watchdog(
    flow: Flow, notifier: GroupRecorder
) -> None:
    run = flow.start(squares, NUMBERS)
    for task_id in notifier.groups[0].task_ids:
        answer(flow, task_id)
    flow.watchdog()
    assert run.info().open_steps == 40, "the callback may still be on its way"
    flow.clock.advance(seconds=2 * flow.engine.settings.watchdog_interval)
    flow.watchdog()
    finish(flow, run, EXPECTED)


def test_a_callback_that_fires_early_consumes_the_reports_so_far(
    flow: Flow, notifier: GroupRecorder
) -> None:
    run = flow.start(squares, NUMBERS)
    ids = notifier.groups[0].task_ids
    for task_id in ids[:15]:
        answer(flow, task_id)
    flow.engine.advance(run.id)
    assert run.info().open_steps == 25
    for task_id in ids[15:]:
        answer(flow, task_id)
    flow.engine.advance(run.id)
    finish(flow, run, EXPECTED)


def test_a_callback_that_fires_twice_decides_nothing_the_second_time(
    flow: Flow, notifier: GroupRecorder
) -> None:
    run = flow.start(squares, NUMBERS)
    for task_id in notifier.groups[0].task_ids:
        answer(flow, task_id)
    flow.engine.advance(run.id)
    after = evaluations(flow, run)
    flow.engine.advance(run.id)
    assert evaluations(flow, run) == after
    finish(flow, run, EXPECTED)


def test_a_failure_in_a_group_is_evaluated_at_once(flow: Flow, notifier: GroupRecorder) -> None:
    run = flow.start(squares, NUMBERS)
    ids = notifier.groups[0].task_ids
    answer(flow, ids[0])
    failed = Failed({"type": "Error", "message": "no"})
    flow.engine.report(claim(flow, ids[1]), failed, in_chord=True)
    assert run.info().open_steps == 38, "the answer before it was consumed too"


def test_a_task_that_leaves_its_chord_is_still_counted(flow: Flow, notifier: GroupRecorder) -> None:
    run = flow.start(squares, NUMBERS)
    ids = notifier.groups[0].task_ids
    lost = claim(flow, ids[0])
    released = claim(flow, ids[1])
    flow.engine.release(released)
    for task_id in ids[2:]:
        answer(flow, task_id)
    flow.engine.advance(run.id)  # the callback: its headers have passed over the two
    flow.engine.report(lost, Lost("gone"))
    finish(flow, run, EXPECTED)


def test_an_answer_past_the_tasks_is_counted_too(flow: Flow, notifier: GroupRecorder) -> None:
    run = flow.start(squares, NUMBERS)
    ids = notifier.groups[0].task_ids
    for task_id in ids[1:]:
        answer(flow, task_id, in_chord=False)
    assert run.info().open_steps == 40, "one is outstanding"
    (first,) = [task for task in flow.engine.tasks(run.id) if task.uuid == ids[0]]
    flow.engine.continue_step(first.step_id, {"result": 0})
    finish(flow, run, EXPECTED)


def test_a_task_that_enables_the_next_step_of_its_item_is_in_no_group(
    flow: Flow, notifier: GroupRecorder
) -> None:
    run = flow.start(two_each, NUMBERS)
    assert notifier.groups == []
    finish(flow, run, sum(n**4 for n in NUMBERS))


def test_reports_of_a_group_take_no_lock_on_the_run(flow: Flow, notifier: GroupRecorder) -> None:
    flow.start(squares, NUMBERS)
    statements: list[str] = []
    event.listen(flow.database.engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
    with watched(flow.engine, lambda sql, _given: statements.append(sql)):
        answer(flow, notifier.groups[0].task_ids[0])
    assert statements
    assert not [s for s in statements if "flowengine_run" in s]


def test_postgres_a_report_between_the_look_and_a_cancellation_is_evaluated(
    postgres: PostgresServer, notifier: GroupRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last but one is counted by who reports it, the last by who answers it from outside."""
    url = postgres.new_database()
    with Flow(store_url=url) as flow, Flow(store_url=url) as other:
        replace_notifier(flow.engine, notifier)
        run = flow.start(squares, NUMBERS)
        (group,) = notifier.groups
        *most, late, last = group.task_ids
        for task_id in most:
            answer(flow, task_id)
        late_task, last_task = claim(flow, late), claim(flow, last)
        cancel_open = Reports.cancel_open

        def after_a_report(*given: Any) -> bool:
            monkeypatch.undo()
            assert other.engine.report(late_task, Succeeded({"result": 0}))
            return cancel_open(*given)

        monkeypatch.setattr(Reports, "cancel_open", after_a_report)
        flow.engine.continue_step(last_task.step_id, {"result": 0})
        open_tasks = {task.uuid for task in flow.engine.tasks(run.id) if task.state == "pending"}
        assert len(open_tasks) == 1, "the join's own step"
    postgres.drop_database(url)
