"""Every line that a step has printed is stored once and in order, whatever dies meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from flowengine.store import Database
from tests.acceptance import numbered_lines as lines
from tests.acceptance.numbered_lines import Workers, all_lines, wait_until
from tests.celery_nodes.postgres import RestartablePostgres
from tests.integration.engines import opened
from tests.integration.test_outages import accept_connections, refuse_connections
from tests.servers import PostgresServer

Outage = Callable[[float], None]


def run_through(
    url: str,
    directory: Path,
    outage: Outage,
    draw: Random,
    *,
    workers: int,
    items: int,
    count: int,
    kills: int,
    outages: int,
) -> str:
    """Print all lines, with kills and outages at even distances; return the counts."""
    (directory / "printed").mkdir()
    settings = lines.settings_of(url, directory)
    fleet = Workers(url, directory)
    with opened(url, settings=settings) as engine:
        given = all_lines.inputs(list(range(items)), count)
        run = engine.start(all_lines.program(), all_lines.name, given)
        fleet.start(workers)
        try:
            faults = ["kill"] * kills + ["outage"] * outages
            draw.shuffle(faults)
            for number, fault in enumerate(faults, 1):
                due = number * items * count // (len(faults) + 1)
                wait_until(lambda due=due: lines.all_printed(directory) >= due, "line")
                if fault == "kill":
                    fleet.kill_one(draw)
                else:
                    outage(1.5)
            wait_until(lambda: run.info().is_final, "end of the run")
        finally:
            fleet.end()
        assert run.result(timeout=0) == [count] * items
        found = lines.check(engine, run, directory)
    return f"{found}; {workers} workers, {kills} kills, {outages} outages"


def test_no_line_is_lost_or_doubled_by_a_kill_and_an_outage(
    postgres: PostgresServer, with_schema: str, tmp_path: Path
) -> None:
    url = postgres.new_database(with_schema)
    database = Database(url)

    def outage(seconds: float) -> None:
        refuse_connections(database)
        time.sleep(seconds)
        accept_connections(database)

    size = {"workers": 2, "items": 6, "count": 300, "kills": 1, "outages": 1}
    print(run_through(url, tmp_path, outage, Random(1), **size))
    postgres.drop_database(url)


@pytest.mark.chaos
def test_a_hundred_thousand_lines_of_eight_workers_are_stored_once_and_in_order(
    tmp_path: Path, chaos_seed: int
) -> None:
    postgres = RestartablePostgres()
    try:
        url = postgres.new_database()

        def outage(seconds: float) -> None:
            postgres.go_away()
            time.sleep(2 * seconds)
            postgres.come_back()

        size = {"workers": 8, "items": 80, "count": 1_250, "kills": 6, "outages": 3}
        print(run_through(url, tmp_path, outage, Random(chaos_seed), **size))
    finally:
        postgres.stop()
