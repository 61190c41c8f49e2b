"""SIGKILL at every commit of runs that sleep, wait, are limited, cancelled and retried."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowengine.engine import Engine
from flowengine.store import Database, ensure_schema
from tests.acceptance import controlled_runs
from tests.fork_server import context
from tests.servers import PostgresServer


def run_child(url: str, repaired: Path, commits: int, moment: str) -> int:
    child = context.Process(
        target=controlled_runs.drive, args=(url, str(repaired), commits, moment)
    )
    child.start()
    child.join(timeout=180)
    assert child.exitcode is not None, "the child did not end"
    return int(child.exitcode)


def upgrade(url: str) -> None:
    database = Database(url)
    ensure_schema(database, upgrade=True)
    database.close()


def check(url: str) -> None:
    """Three runs, each ended as it should; no task, timer or fact is left."""
    engine = Engine(Database(url))
    try:
        runs = {info.workflow: info for info in engine.list()}
        assert {name: info.state for name, info in runs.items()} == {
            controlled_runs.WAITED: "COMPLETED",
            controlled_runs.CANCELLED: "CANCELLED",
            controlled_runs.RETRIED: "COMPLETED",
        }
        for info in runs.values():
            states = {task.state for task in engine.tasks(info.id)}
            assert states <= {"completed", "failed", "canceled", "ignored"}, info.workflow
            with engine.database.read() as session:
                assert session.recovery.timers(info.id) == {}, info.workflow
        retried = runs[controlled_runs.RETRIED]
        done = [t for t in engine.tasks(retried.id) if t.state == "completed"]
        # Each item once, and the sum; the failed item was tried once more.
        assert len({t.step_id for t in done}) == len(done) == 4
    finally:
        engine.close()


def kill_at(url: str, directory: Path, commit: int, moment: str) -> bool:
    """Kill the driver at a commit and let another finish; False: it had fewer commits."""
    repaired = directory / f"{moment}-{commit}.repaired"
    exitcode = run_child(url, repaired, commit, moment)
    if exitcode == 0:
        return False
    assert exitcode == -9
    assert run_child(url, repaired, 0, moment) == 0, f"killed {moment} commit {commit}"
    check(url)
    return True


@pytest.mark.parametrize(("commit", "moment"), [(5, "before"), (9, "after")])
def test_runs_under_control_survive_a_kill(commit: int, moment: str, tmp_path: Path) -> None:
    assert kill_at(f"sqlite:///{tmp_path}/{commit}.db", tmp_path, commit, moment)


@pytest.mark.chaos
@pytest.mark.parametrize("moment", ["after", "before"])
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_runs_under_control_survive_a_kill_at_any_commit(
    kind: str, moment: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    postgres: PostgresServer | None = None
    if kind == "postgresql":
        postgres = request.getfixturevalue("postgres")
    commit = killed = 0
    while True:
        commit += 1
        url = postgres.new_database() if postgres else f"sqlite:///{tmp_path}/{commit}.db"
        upgrade(url)
        was_killed = kill_at(url, tmp_path, commit, moment)
        if postgres:
            postgres.drop_database(url)
        if not was_killed:
            break
        killed += 1
    print(f"{kind}, killed {moment} each of {killed} commits")
    assert killed >= 10, "the runs should have more commits"
