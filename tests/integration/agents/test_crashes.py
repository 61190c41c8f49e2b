"""A turn whose process dies before or after any commit delivers once all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from flowengine.worker.execution import execute_try
from tests.integration.agents.clerks import Office, calls, clerk, office, plan
from tests.servers import PostgresServer

PLAN = {
    "work": [calls("search", "measure", "translator"), calls("search_twice"), "done"],
    "translate hello": ["bonjour"],
    "next": ["also done"],
}


#: The ways to a transaction that writes.
WAYS = ("write", "optimistic", "autocommit")


class Killed(BaseException):
    """The process is gone: nothing of it catches this."""


@contextmanager
def killed_at(desk: Office, number: int, *, before: bool) -> Iterator[list[int]]:
    """Let the process die before or after the commit with this number; count the commits."""
    database: Any = desk.engine.database
    seen = [0]

    def deadly(name: str) -> Any:
        opened = getattr(database, name)

        @contextmanager
        def writing(*args: Any, **kwargs: Any) -> Iterator[Any]:
            seen[0] += 1
            dies = seen[0] == number
            if dies and before and name != "write":  # its statements commit one by one
                raise Killed
            with opened(*args, **kwargs) as session:
                yield session
                if dies and before:
                    raise Killed
            if dies:
                raise Killed

        return writing

    for name in WAYS:
        setattr(database, name, deadly(name))
    try:
        yield seen
    finally:
        for name in WAYS:
            delattr(database, name)


def play(desk: Office, number: int, *, before: bool) -> bool:
    """Send two messages and work on them; return whether it came to that commit.

    In a try, the death is that of the try alone.
    """
    plan.reset(PLAN)
    sent = clerk.at("ada").options(key="1")
    with killed_at(desk, number, before=before) as seen:
        try:
            sent.send("work")
            clerk.at("ada").options(key="2").send("next")
            desk.work()
        except Killed:
            for worker in desk.flow._workers.values():
                worker.die()
            desk.flow._workers.clear()
    first = sent.send("work")
    second = clerk.at("ada").options(key="2").send("next")
    desk.work()
    assert first.result(timeout=5) == "done"
    assert second.result(timeout=5) == "also done"
    desk.check(first, second)
    assert sorted(desk.results(first), key=str) == [
        *("bonjour", "found found kettle", "found kettle", {"litres": 2}),
    ]
    turns = desk.rows("SELECT count(*), count(finished_at) FROM flowengine_agent_turn")
    assert tuple(turns[0]) == (3, 3)
    open_runs = desk.rows("SELECT count(*) FROM flowengine_run WHERE state = 'RUNNING'")
    assert open_runs[0][0] == 0
    return seen[0] >= number


def commits(url: str) -> int:
    with office(url) as desk, killed_at(desk, 0, before=True) as seen:
        plan.reset(PLAN)
        turn = clerk.at("ada").send("work")
        clerk.at("ada").send("next")
        desk.flow.settle()
        assert turn.result(timeout=5) == "done"
        return seen[0]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("place", range(4))
def test_s11_a_process_that_dies_at_some_commit_loses_no_turn(place: int, before: bool) -> None:
    """Some commits here; all of them in the long form."""
    most = commits("sqlite://")
    with office("sqlite://") as desk:
        assert play(desk, 1 + place * most // 4, before=before)


@pytest.mark.chaos
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_s11_a_process_that_dies_at_any_commit_loses_no_turn(
    kind: str, before: bool, postgres: PostgresServer, with_schema: str
) -> None:
    number, has_come = 0, True
    while has_come:
        number += 1
        url = "sqlite://" if kind == "sqlite" else postgres.new_database(with_schema)
        with office(url) as desk:
            has_come = play(desk, number, before=before)
        if kind != "sqlite":
            postgres.drop_database(url)
    print(f"{kind}: died at each of {number - 1} commits")
    assert number > 20


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_model_call_whose_worker_dies_is_made_again_under_a_new_epoch(
    desk: Office, deaths: int
) -> None:
    plan.reset({"die": ["done"]})
    turn = clerk.send("die")
    run_id = desk.head(turn).run_id
    assert run_id is not None
    zombies = []
    for number in range(deaths):
        worker = desk.flow.worker(f"dies {number}")
        task = worker.claim(desk.engine.run(run_id), "call")
        outcome = execute_try(desk.engine, task, lambda _=None: True)  # it entered, and is stopped
        zombies.append((worker, task, outcome))
        worker.die()
        desk.tick(60)
        desk.tick(60)
    desk.work()
    assert turn.result(timeout=5) == "done"
    assert turn.info().recoveries == deaths
    before = desk.cards(turn)
    for _, task, outcome in zombies:  # it goes on, and reports its answer
        assert desk.engine.report(task, outcome) is False
    desk.work()
    assert desk.cards(turn) == before
    assert desk.head(turn).epoch == 1 + deaths
    desk.check(turn)


def test_a_late_first_try_cannot_enter_after_the_second(desk: Office) -> None:
    plan.reset({"late": [calls("search"), "done"]})
    turn = clerk.send("late")
    run_id = desk.head(turn).run_id
    assert run_id is not None
    first = desk.flow.worker("first")
    old = first.claim(desk.engine.run(run_id), "call")  # it is stopped before it enters
    first.die()
    desk.tick(60)
    desk.tick(60)
    second = desk.flow.worker("second")
    new = second.claim(desk.engine.run(run_id), "call")
    outcome = execute_try(desk.engine, new, lambda _=None: True)
    asked = list(plan.asked)
    execute_try(desk.engine, old, lambda _=None: True)
    assert plan.asked == asked  # the model is not paid again
    assert desk.engine.report(new, outcome)
    desk.work()
    assert turn.result(timeout=5) == "done"


def test_a_model_that_is_lost_too_often_ends_the_turn(desk: Office) -> None:
    plan.reset({"die": ["never"], "next": ["done"]})
    turn = clerk.at("ada").send("die")
    following = clerk.at("ada").send("next")
    run_id = desk.head(turn).run_id
    assert run_id is not None
    for number in range(10):
        if turn.info().state == "finished":
            break
        worker = desk.flow.worker(f"dies {number}")
        worker.claim(desk.engine.run(run_id), "call")
        worker.die()
        desk.tick(60)
        desk.tick(60)
    assert (turn.info().status, turn.info().error_code) == ("failed", "worker_lost")
    desk.work()
    assert following.result(timeout=5) == "done"
    desk.check(turn, following)
