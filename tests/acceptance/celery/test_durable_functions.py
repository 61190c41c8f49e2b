"""Durable functions on a fleet: processes are killed, wake-ups lost and Redis is emptied."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from tests.acceptance.celery import durable
from tests.acceptance.celery.agent_load import LOSSY
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet
from tests.acceptance.celery.mixed_load import Killer
from tests.acceptance.celery.rows import ended, wait_for
from tests.celery_nodes import Fleet


@pytest.fixture(scope="module")
def module_fleet(make_fleet: MakeFleet, chaos_seed: int) -> Fleet:
    fleet = make_fleet(
        imports=f"{durable.__name__},{LOSSY}",
        LOSSY_SEED=str(chaos_seed),
        LOSSY_SHARES="0.2,0.2,0",  # lost, doubled, delayed
    )
    for name in ("first", "second"):
        fleet.add_worker(name, *QUICK_START, "-c", "2", wait=False)
    fleet.add_beat()
    return fleet


class Faults(Killer):
    def _redis_emptied(self) -> None:
        self.fleet.broker.server.flush()


def run_functions(fleet: Fleet, seed: int, count: int, plan: list[str], longest: float) -> None:
    killer = Faults(fleet, seed)
    killer.lots.shuffle(plan)
    runs = {fleet.start(durable.travels, n=n).id: durable.expected(n) for n in range(count)}
    handles = [fleet.engine.run(run_id) for run_id in runs]
    for what in plan:
        if ended(fleet.engine, handles) == len(handles):
            break
        killer.wait(longest)
        killer.kill(what)
    fleet.heal()
    wait_for(fleet.engine, handles, 120 + 2 * count)
    check_functions(fleet, runs)
    lost = rows(fleet, "SELECT count(*) FROM flowengine_task WHERE outcome = 'lost'")[0][0]
    in_place = rows(
        fleet,
        "SELECT count(*) FROM flowengine_step s WHERE object_type = 'FunctionCall' "
        "AND NOT EXISTS (SELECT 1 FROM flowengine_task t WHERE t.step_id = s.id)",
    )[0][0]
    print(
        f"\nseed {seed}: {count} functions; killed {dict(killer.kills)}; {lost} tries lost, "
        f"{in_place} calls made in place"
    )


def rows(fleet: Fleet, query: str) -> list[tuple[object, ...]]:
    with fleet.engine.database.read() as session:
        return [tuple(row) for row in session.connection.execute(text(query))]


def check_functions(fleet: Fleet, runs: dict[str, int]) -> None:
    """All have their results; no number is there twice, and nothing is open."""
    infos = [fleet.engine.get(run_id) for run_id in runs]
    otherwise = [
        (info.id, info.state, info.outputs, info.error_text, info.alarm)
        for info in infos
        if (info.state, info.outputs) != ("COMPLETED", {"result": runs[info.id]})
    ]
    assert otherwise == []
    numbers = rows(
        fleet,
        "SELECT run_id, count(*), count(DISTINCT position), max(position) FROM flowengine_step "
        "WHERE object_type = 'FunctionCall' GROUP BY run_id",
    )
    calls = durable.CALLS
    assert {counts[1:] for counts in numbers} == {(calls, calls, calls - 1)}
    left = rows(
        fleet,
        "SELECT uuid FROM flowengine_task WHERE state IN ('pending', 'running') OR NOT taken_in",
    )
    assert left == []
    assert rows(fleet, "SELECT id FROM flowengine_fact WHERE NOT taken_in") == []
    assert rows(fleet, "SELECT id FROM flowengine_timer WHERE fired IS NULL") == []


def test_functions_survive_kills_and_lost_wake_ups(fleet: Fleet, chaos_seed: int) -> None:
    run_functions(fleet, chaos_seed, 12, ["child", "child", "worker"], longest=0.4)


@pytest.mark.chaos
def test_two_hundred_functions_under_many_kills(fleet: Fleet, chaos_seed: int) -> None:
    plan = [*["child"] * 30, *["worker"] * 10, *["beat"] * 2, *["redis_emptied"] * 4]
    run_functions(fleet, chaos_seed, 200, plan, longest=0.8)
