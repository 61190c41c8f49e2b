"""500 turns of 50 agents while processes are killed, Redis is emptied and PostgreSQL is away."""

from __future__ import annotations

import time

import pytest

from tests.acceptance.celery.agent_load import LISTS, faults, run_turns
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet
from tests.acceptance.celery.mixed_load import Killer
from tests.celery_nodes import Fleet, RestartablePostgres

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def module_fleet(
    make_fleet: MakeFleet, postgres_away: RestartablePostgres, chaos_seed: int
) -> Fleet:
    fleet = make_fleet(database_url=postgres_away.new_database(), **faults(chaos_seed))
    for name in ("first", "second"):
        fleet.add_worker(name, *QUICK_START, *LISTS, "-c", "2", wait=False)
    fleet.add_beat()
    return fleet


class Outages(Killer):
    """Kills, and servers that are emptied or away for a moment."""

    def __init__(self, fleet: Fleet, seed: int, postgres: RestartablePostgres) -> None:
        super().__init__(fleet, seed)
        self._server = postgres

    def _redis_emptied(self) -> None:
        self.fleet.broker.server.flush()

    def _postgres_away(self) -> None:
        self._server.go_away()
        time.sleep(self.lots.uniform(0.5, 3))
        self._server.come_back()


def test_500_messages_are_delivered_once_under_many_faults(
    fleet: Fleet, chaos_seed: int, postgres_away: RestartablePostgres
) -> None:
    plan = [*["child"] * 20, *["worker"] * 6, *["whole_worker"] * 6, *["beat"] * 3]
    plan += [*["redis_emptied"] * 4, *["postgres_away"] * 3]
    run_turns(
        Outages(fleet, chaos_seed, postgres_away), chaos_seed, turns=500, agents=50, plan=plan
    )
