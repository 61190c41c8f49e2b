"""Limits and rates hold although workers are killed and every message is lost or doubled."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from sqlalchemy import text

from flowengine.engine import Run
from tests.acceptance.celery import limited
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet
from tests.acceptance.celery.mixed_load import Killer
from tests.acceptance.celery.rows import ended, wait_for
from tests.celery_nodes import Fleet, until

LOSSY = "tests.acceptance.celery.lossy"  # named, not imported: it would disturb this process too


@pytest.fixture(scope="module")
def module_fleet(make_fleet: MakeFleet, chaos_seed: int) -> Fleet:
    """Two workers with four pool children each."""
    fleet = make_fleet(
        imports=f"{limited.__name__},{LOSSY}",
        LOSSY_SEED=str(chaos_seed),
        LOSSY_SHARES="0.5,0.5,0",  # lost, doubled, delayed
    )
    for name in ("first", "second"):
        fleet.add_worker(name, *QUICK_START, "-c", "4", wait=False)
    fleet.add_beat()
    return fleet


def rows(fleet: Fleet, query: str) -> list[Any]:
    with fleet.engine.database.read() as session:
        return list(session.connection.execute(text(query)))


def most_starts(fleet: Fleet) -> int:
    """Return the most starts of rated tasks in one period, by the database's own clock."""
    found = rows(fleet, "SELECT started FROM flowengine_task WHERE limits LIKE '%rate:%'")
    starts = sorted(row.started for row in found if row.started is not None)
    period = limited.PERIOD * 1000
    return max(
        sum(first <= other < first + period for other in starts[at:])
        for at, first in enumerate(starts)
    )


def free_all(fleet: Fleet) -> bool:
    """Whether no slot is taken, and nobody waits."""
    with fleet.engine.database.write() as session:
        found = session.connection.execute(text("SELECT key FROM flowengine_limit"))
        keys = [row.key for row in found]
        rates = [key for key in keys if key.startswith("rate:")]
        session.admission.free_slots(keys, rates, session.now())
    return not rows(
        fleet, "SELECT key FROM flowengine_slot UNION ALL SELECT id FROM flowengine_queue"
    )


def run_under_limits(fleet: Fleet, seed: int, customers: int, mails: int, kills: int) -> None:
    killer = Killer(fleet, seed)
    plan = [*["child"] * (kills * 3 // 4), *["whole_worker"] * (kills // 4)]
    killer.lots.shuffle(plan)
    big = fleet.start(limited.big, customer="big")
    small = [fleet.start(limited.small, customer=f"c{n}") for n in range(customers)]
    mailed = fleet.start(limited.mails, numbers=list(range(mails)))
    runs: list[Run[Any]] = [big, *small, mailed]
    for what in plan:
        if ended(fleet.engine, runs) == len(runs):
            break
        killer.wait(0.8)
        killer.kill(what)
    wait_for(fleet.engine, runs, 120 + 2 * customers + mails)
    assert big.result(timeout=0) == list(range(limited.BIG))
    assert [run.result(timeout=0) for run in small] == [list(range(limited.SMALL))] * customers
    assert mailed.result(timeout=0) == list(range(mails))
    places = Counter(path.name.split("-")[1] for path in fleet.traces.glob("place-*"))
    violations = [path.name for path in fleet.traces.glob("violation-*")]
    fates = Counter(
        fate for path in fleet.traces.glob("messages-*") for fate in path.read_text().split()
    )
    lost = rows(fleet, "SELECT count(*) FROM flowengine_task WHERE outcome = 'lost'")[0][0]
    starts = most_starts(fleet)
    print(
        f"\nseed {seed}: killed {dict(killer.kills)}, {lost} tries lost, messages {dict(fates)}; "
        f"most at a time: {places['shared']} of {limited.SHARED} shared, "
        f"{max(n for key, n in places.items() if key != 'shared')} of {limited.PER_CUSTOMER} per "
        f"customer; {starts} of {limited.STARTS} starts per period; violations: {violations}"
    )
    assert violations == []
    assert starts <= limited.STARTS
    assert fates["lost"] > 5
    assert fates["duplicated"] > 5
    # No customer starves: those with few calls need not wait for the one with many.
    ends = {row.id: row.finished for row in rows(fleet, "SELECT id, finished FROM flowengine_run")}
    assert max(ends[run.id] for run in small) < ends[big.id]
    # No slot was lost: as many tries as the limits allow run at the same time.
    customers_of_all = [f"m{n}" for n in range(limited.SHARED // limited.PER_CUSTOMER)]
    fleet.heal()
    meeting = fleet.start(limited.all_together, customers=customers_of_all, meeting=str(seed))
    wait_for(fleet.engine, [meeting], 90)
    assert meeting.result(timeout=0) == [[True] * limited.PER_CUSTOMER] * len(customers_of_all)
    until(lambda: free_all(fleet), "the end of all slots")


@pytest.mark.chaos
def test_limits_and_rates_hold_while_workers_are_killed_and_messages_lost(
    fleet: Fleet, chaos_seed: int
) -> None:
    run_under_limits(fleet, chaos_seed, customers=3, mails=30, kills=4)


@pytest.mark.chaos
def test_limits_and_rates_hold_under_many_kills(fleet: Fleet, chaos_seed: int) -> None:
    run_under_limits(fleet, chaos_seed, customers=8, mails=600, kills=80)
