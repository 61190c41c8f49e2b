"""Pollers and runner services compete for tasks while they are killed at random.

Each result is recorded once, nothing is left behind, and no task runs a second time without the
loss of a process behind it. A failure is repeated by its seed.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from flowengine.engine.watchdog import Watchdog
from tests.acceptance.sdk.contest import Contest, assert_nothing_is_left, settings_of
from tests.integration.engines import opened
from tests.integration.sdk.pollers import until
from tests.servers import PostgresServer


def compete(url: str, directory: Path, seed: int, **numbers: int) -> None:
    tasks, kills = numbers.pop("tasks"), numbers.pop("kills")
    with opened(url, settings=settings_of(url, directory)) as engine:
        contest = Contest(url, directory, **numbers)
        try:
            count = contest.run(engine, tasks, kills, Random(seed))
        finally:
            contest.stop()
        print(
            f"\nseed {seed}: {count.tasks} tasks, {count.executions} executions, {count.kills} "
            f"kills {dict(count.killed)}, {count.losses} losses, {count.repeated} repeated, "
            f"{count.unexplained} of them without a loss, {count.seconds:.1f} s"
        )
        assert count.executions >= tasks
        assert count.losses > 0 or kills < 10, "many kills have hit work; a few may miss it"
        assert count.unexplained == 0

        # Recovery declares the killed servers dead; then their locks are free.
        def is_quiet() -> bool:
            Watchdog(engine).tick()
            with engine.database.read() as session:
                return session.servers.alive() == []

        until(is_quiet)
        assert_nothing_is_left(engine, directory)


@pytest.mark.chaos  # killed pollers alone: test_killed_poller.py
def test_killed_pollers_and_runners_lose_no_task_and_repeat_none_without_a_loss(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """A smaller form of the test below, which is over in seconds."""
    compete(postgres.new_database(), tmp_path, 1, pollers=2, runners=1, tasks=400, kills=4)


@pytest.mark.chaos
def test_eight_pollers_and_two_runners_compete_for_5000_tasks_while_they_are_killed(
    postgres: PostgresServer, tmp_path: Path, chaos_seed: int
) -> None:
    url = postgres.new_database()
    compete(url, tmp_path, chaos_seed, pollers=8, runners=2, tasks=5_000, kills=40)


@pytest.mark.chaos
def test_pollers_and_a_runner_compete_on_sqlite_while_they_are_killed(
    tmp_path: Path, chaos_seed: int
) -> None:
    """Fewer: SQLite has one writer at a time, and notices a death by its timeout alone."""
    url = f"sqlite:///{tmp_path}/flow.db"
    compete(url, tmp_path, chaos_seed, pollers=3, runners=1, tasks=500, kills=5)
