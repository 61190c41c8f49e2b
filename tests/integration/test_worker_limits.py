"""Limits of workers: a server never holds more, whichever of its processes claims."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import text

from flowengine import event_facet, foreach, workflow
from flowengine.authoring import event_facet_names
from flowengine.cli import main
from flowengine.dispatch import NullNotifier
from flowengine.engine import Engine
from flowengine.engine.recovery import alarm_unserved_tasks
from flowengine.errors import UnknownWorker, ValueRefused
from flowengine.evaluator.triggers import Succeeded
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.store.servers import ServerDefinition, ServerState
from flowengine.tasks.celery_tasks import WakeupRelay
from flowengine.worker import TaskWorker
from tests.integration.engines import opened, side_by_side, watched
from tests.integration.threads import in_threads

IDENTITY = WorkerIdentity("s" * 32, "b" * 32, 1)
NAMES = ["t.Work"]
HEADINGS = ("version", "heartbeat", "tasks", "workflows", "state")


class Wakeups(NullNotifier):
    def __init__(self) -> None:
        self.lists: list[str] = []

        self.passed_on: list[str] = []

    def notify(self, due: Mapping[str, int]) -> None:
        self.lists += due

    def pass_on(self, task_list: str, wake: int, hops: int) -> None:
        self.passed_on.append(task_list)


@pytest.fixture
def wakeups() -> Wakeups:
    return Wakeups()


@pytest.fixture
def engine(database_url: str, wakeups: Wakeups, tmp_path: Path) -> Iterator[Engine]:
    spool = str(tmp_path / "spool")
    settings = Settings(heartbeat_interval=3_600, worker_time_slice=60, spool_directory=spool)
    with opened(database_url, notifier=wakeups, settings=settings) as engine:
        yield engine


def register(engine: Engine, name: str = "io@vm", **limits: Any) -> None:
    server = ServerDefinition(IDENTITY.server_id, "default", "test", name)
    about: dict[str, Any] = {"state": ServerState.RUNNING, "boot_id": IDENTITY.boot_id, **limits}
    server = replace(server, **about)
    with engine.database.write() as session:
        session.servers.register(server)


def start(engine: Engine, number: int = 1, steps: int = 10) -> list[str]:
    flow = side_by_side(*(f"s{n}" for n in range(steps)))
    return [engine.start(flow, "Flow", {}).id for _ in range(number)]


def claim(engine: Engine, most: int = 5) -> list[Any]:
    return engine.claim(NAMES, "default", IDENTITY, most=most)


def held(engine: Engine) -> dict[str, int]:
    with engine.database.read() as session:
        return session.worker_limits.held(IDENTITY.boot_id)


# --- tries ---


def test_concurrent_claims_of_one_server_never_exceed_its_limit_together(engine: Engine) -> None:
    register(engine, max_tasks=3)
    start(engine)
    found = in_threads([lambda: claim(engine)] * 8)
    assert sum(map(len, found)) == 3
    tasks = [task for part in found for task in part]
    assert engine.report(tasks[0], Succeeded({"y": 1}))
    assert sum(map(len, in_threads([lambda: claim(engine)] * 8))) == 1, "one place was free"


def test_each_server_has_a_limit_of_its_own(engine: Engine) -> None:
    register(engine, max_tasks=3)
    start(engine)
    other = WorkerIdentity("o" * 32, "c" * 32, 2)
    assert len(claim(engine)) == 3
    assert len(engine.claim(NAMES, "default", other, most=20)) == 7


def test_tasks_that_a_message_names_are_claimed_under_the_limit(engine: Engine) -> None:
    register(engine, max_tasks=3)
    (run,) = start(engine)
    ids = [task.uuid for task in engine.tasks(run)]
    assert len(engine.claim_these(ids, "default", IDENTITY, most=8).tasks) == 3
    assert engine.claim_these(ids, "default", IDENTITY, most=1).tasks == []


def test_the_setting_limits_a_server_that_is_not_registered_yet(
    database_url: str, wakeups: Wakeups
) -> None:
    with opened(database_url, notifier=wakeups, settings=Settings(max_tasks=2)) as engine:
        start(engine)
        assert len(claim(engine)) == 2
        assert claim(engine) == []


# --- runs ---


def test_at_the_limit_of_runs_a_server_claims_tasks_of_these_runs_alone(engine: Engine) -> None:
    register(engine, max_workflows=2)
    start(engine, number=4, steps=3)
    for _ in range(4):
        in_threads([lambda: claim(engine)] * 4)
    assert list(held(engine).values()) == [3, 3]
    assert claim(engine) == []


def test_a_run_whose_tries_have_ended_makes_room_for_another(engine: Engine) -> None:
    register(engine, max_workflows=1)
    start(engine, number=2, steps=1)
    (task,) = claim(engine)
    assert claim(engine) == []
    engine.report(task, Succeeded({"y": 1}))
    (other,) = claim(engine)
    assert other.workflow_id != task.workflow_id


def test_at_the_limit_of_runs_tasks_that_a_message_names_must_be_of_these_runs(
    engine: Engine,
) -> None:
    register(engine, max_workflows=1)
    first, second = start(engine, number=2, steps=3)
    ids = {run: [task.uuid for task in engine.tasks(run)] for run in (first, second)}
    assert len(engine.claim_these(ids[second], "default", IDENTITY, most=1).tasks) == 1
    assert engine.claim_these(ids[first], "default", IDENTITY, most=3).tasks == []
    both = [*ids[first], *ids[second]]
    assert len(engine.claim_these(both, "default", IDENTITY, most=9).tasks) == 2
    assert held(engine) == {second: 3}


# --- live changes ---


def test_a_limit_that_is_set_is_obeyed_when_the_server_asks_again(engine: Engine) -> None:
    register(engine)
    start(engine, steps=30)
    assert len(claim(engine)) == 5
    engine.workers.set_limits("io@vm", tasks=6, actor="eva")
    now = time.monotonic()
    engine.limited_claims._clock = lambda: now + 3_600
    assert len(claim(engine)) == 1
    engine.workers.set_limits("io@vm", tasks=8)
    assert len(claim(engine)) == 2, "a limited claim reads the limit each time"
    engine.workers.set_limits("io@vm", tasks=2)
    assert claim(engine) == [], "it holds more than that, and ends it first"
    engine.workers.set_limits("io@vm", tasks=None)
    assert len(claim(engine)) == 5


def test_a_limit_goes_before_the_setting_and_outlives_the_server(engine: Engine) -> None:
    register(engine, max_tasks=2)
    engine.workers.set_limits("io@vm", tasks=4)
    start(engine, steps=20)
    assert len(claim(engine)) == 4
    with engine.database.write() as session:
        session.servers.deregister(IDENTITY.server_id)
    again = WorkerIdentity("a" * 32, "d" * 32, 1)
    server = ServerDefinition(again.server_id, "default", "test", "io@vm", boot_id=again.boot_id)
    with engine.database.write() as session:
        session.servers.register(server)
    assert len(engine.claim(NAMES, "default", again, most=9)) == 4


def test_an_unknown_worker_is_refused_with_similar_names(engine: Engine) -> None:
    register(engine)
    with pytest.raises(UnknownWorker, match=r"'io@vn'; did you mean 'io@vm'\?") as caught:
        engine.workers.set_limits("io@vn", tasks=1)
    assert "flowengine workers" in str(caught.value)


@pytest.mark.parametrize("wrong", [0, -5, 1.5, True, "x", 1_000_001, 10**30])
def test_a_limit_that_is_no_number_from_1_to_the_most_is_refused(
    engine: Engine, wrong: Any
) -> None:
    register(engine)
    for option, least in (("tasks", 0), ("workflows", 1)):
        if wrong is least:
            continue  # no tasks: see drain
        with pytest.raises(ValueRefused, match=f"{option}=.* from {least} to 1,000,000, or None"):
            engine.workers.set_limits("io@vm", **{option: wrong})
    (info,) = engine.workers.list()
    assert (info.max_tasks, info.max_workflows) == (None, None)


# --- wake-ups ---


def test_a_list_that_found_no_room_is_woken_when_there_is_some(
    engine: Engine, wakeups: Wakeups
) -> None:
    register(engine, max_tasks=1)
    start(engine, steps=1)
    (task,) = claim(engine)
    assert engine.claim(NAMES, "gpu", IDENTITY, most=1) == []
    engine.report(task, Succeeded({"y": 1}))
    wakeups.lists.clear()
    assert claim(engine) == []
    assert wakeups.lists == ["gpu"]
    assert claim(engine) == []
    assert wakeups.lists == ["gpu"], "it is woken once"


@pytest.mark.parametrize("others", [True, False])
def test_a_limited_worker_passes_a_wake_up_on_if_there_are_other_workers(
    engine: Engine, wakeups: Wakeups, others: bool
) -> None:
    register(engine, max_tasks=1)
    if others:
        other = ServerDefinition("o" * 32, "default", "test", "cpu@vm", handlers=NAMES)
        with engine.database.write() as session:
            session.servers.register(replace(other, boot_id="c" * 32))
    engine.start(all_work.program(), all_work.name, {"ns": [1, 2]})
    claimed = engine.claim(["limited.work"], "default", IDENTITY, most=1)
    assert len(claimed) == 1
    WakeupRelay(engine, IDENTITY).relay("default", 1, 16)
    assert wakeups.passed_on == (["default"] if others else [])


# --- costs ---


def test_a_server_without_limits_asks_once_in_the_interval_of_its_heartbeat(
    engine: Engine,
) -> None:
    register(engine)
    start(engine)
    statements: list[str] = []
    with watched(engine, lambda text, _: statements.append(text)):
        for _ in range(3):
            assert len(claim(engine, most=1)) == 1
    asked = [text for text in statements if "flowengine_workerlimit" in text]
    assert len(asked) <= 1  # SQLite reads through SQLAlchemy
    assert not any("advisory" in text for text in statements)


# --- workers ---

_running: list[int] = []
_most: list[int] = []
_held: list[int] = []  #: tries that the server holds, as each try of `look` sees it
_engines: list[Engine] = []
_lock = threading.Lock()


def _note(change: int) -> None:
    with _lock:
        _running.append(change)
        _most.append(sum(_running))


@event_facet(name="limited.work")
def work(n: int) -> int:
    _note(1)
    time.sleep(0.002)
    _note(-1)
    return n


@event_facet(name="limited.wait")
async def wait(n: int) -> int:
    _note(1)
    await asyncio.sleep(0.002)
    _note(-1)
    return n


@event_facet(name="limited.look")
def look(n: int) -> int:
    _held.append(sum(held(_engines[-1]).values()))
    return n


@workflow(name="limited.all_look")
def all_look(ns: list[int]) -> list[int]:
    first = look(0)
    return foreach(ns, lambda n: look(n + first))


@workflow(name="limited.all_work")
def all_work(ns: list[int]) -> list[int]:
    return foreach(ns, lambda n: work(work(n)))


@workflow(name="limited.all_wait")
def all_wait(ns: list[int]) -> list[int]:
    return foreach(ns, lambda n: wait(wait(n)))


@pytest.mark.parametrize("flow", [all_work, all_wait])
def test_a_worker_with_many_threads_never_runs_more_than_its_limit(
    engine: Engine, flow: Any
) -> None:
    register(engine, max_tasks=3, max_workflows=2)
    worker = TaskWorker(engine, IDENTITY, event_facet_names)
    _running.clear()
    _most.clear()
    runs = [engine.start(flow.program(), flow.name, {"ns": list(range(8))}) for _ in range(4)]
    stopped = threading.Event()

    def drain() -> None:
        while not stopped.is_set():
            worker.drain("default")
            stopped.wait(0.001)

    threads = [threading.Thread(target=drain) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        assert [run.result(timeout=20) for run in runs] == [list(range(8))] * 4
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
        worker.stop(5)
    assert max(_most) <= 3
    assert len(_most) == 2 * 2 * 8 * 4, "each try ran once"


def test_a_limited_worker_that_ends_a_task_looks_for_others(
    engine: Engine, wakeups: Wakeups
) -> None:
    # Their wake-ups may have been answered while there was no room.
    register(engine, max_tasks=1)
    worker = TaskWorker(engine, IDENTITY, event_facet_names)
    engine.start(all_work.program(), all_work.name, {"ns": [1, 2, 3]})
    try:
        assert worker.drain("default") == 6
    finally:
        worker.stop(5)


def test_batches_and_continuations_are_as_small_as_the_limit(engine: Engine) -> None:
    # All are quick: without a limit they would be batched, and continued with.
    engine.settings = replace(engine.settings, quick_seconds=10, batch_max_wait=60)
    register(engine, max_tasks=2)
    worker = TaskWorker(engine, IDENTITY, event_facet_names)
    _engines.append(engine)
    _held.clear()
    try:
        for _ in range(2):
            run = engine.start(all_look.program(), all_look.name, {"ns": list(range(6))})
            worker.drain("default")
            assert run.result(timeout=5) == list(range(6))
    finally:
        worker.stop(5)
        _engines.clear()
    assert max(_held) == 2


# --- the command ---

Command = Callable[..., Result]


@pytest.fixture
def command(engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("FLOWENGINE_DATABASE_URL", database_url)

    def run(*words: str, expect: int = 0) -> Result:
        result = CliRunner().invoke(main, ["workers", *words])
        assert result.exit_code == expect, result.output
        return result

    return run


def test_the_command_shows_what_workers_hold_and_changes_their_limits(
    engine: Engine, command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    assert "no workers" in command().output
    register(engine, max_tasks=7)
    start(engine, number=2, steps=2)
    claim(engine, most=3)
    with caplog.at_level(logging.INFO, "flowengine"):
        shown = command("set", "io@vm", "--tasks", "8", "--workflows", "4", "--actor", "eva").output
    assert shown == "worker io@vm: tasks at most 8, workflows at most 4; obeyed within 5 s\n"
    assert "io@vm set by person:eva: 8 tries, 4 runs" in caplog.text
    (listed,) = json.loads(command("list", "--json").output)
    assert (listed["tries"], listed["runs"], listed["limits_set_by"]) == (3, 2, "person:eva")
    heading, row = command().output.splitlines()
    assert heading.split() == ["worker", "machine", "task", "lists", *HEADINGS]
    assert row.split()[-3:] == ["3/8", "2/4", "running"]
    command("set", "io@vm", "--tasks", "none", "--workflows", "none")
    assert "3/7 " in command().output


def test_a_command_that_is_called_wrongly_changes_nothing(engine: Engine, command: Command) -> None:
    register(engine)
    assert "did you mean 'io@vm'" in command("set", "io@wm", "--tasks", "1", expect=1).output
    assert "--tasks, --workflows" in command("set", "io@vm", expect=2).output
    assert "from 1 to" in command("set", "io@vm", "--workflows", "0", expect=2).output
    for wrong in ("-1", "many", "1000001", "9" * 5000):
        assert "nor `none`" in command("set", "io@vm", "--tasks", wrong, expect=2).output
    (listed,) = json.loads(command("list", "--json").output)
    assert listed["max_tasks"] is None


# --- drain ---


@pytest.mark.each_database
def test_a_drained_server_claims_nothing_and_others_do(engine: Engine) -> None:
    register(engine)
    start(engine, steps=4)
    (task,) = claim(engine, 1)
    engine.workers.drain("io@vm", actor="eva", reason="new disk")
    engine.limited_claims._known.clear()  # the interval of the heartbeat has passed
    assert claim(engine) == []
    assert engine.workers.list()[0].is_drained
    assert not engine.workers.is_idle("io@vm")
    assert engine.report(task, Succeeded({"y": 1})), "it finishes what it holds"
    assert claim(engine) == []
    assert engine.workers.is_idle("io@vm")
    other = WorkerIdentity("o" * 32, "c" * 32, 2)
    assert len(engine.claim(NAMES, "default", other, most=1)) == 1
    engine.workers.undrain("io@vm", actor="eva")
    engine.limited_claims._known.clear()
    assert len(claim(engine)) == 2
    assert [(one.action, one.reason) for one in engine.actions()] == [
        ("undrain", ""),
        ("drain", "new disk"),
    ]


def test_a_heartbeat_tells_a_server_that_it_is_drained(engine: Engine) -> None:
    register(engine)
    with engine.database.write() as session:
        (server,) = session.servers.alive()
        assert not session.servers.record_heartbeat(server, 1)
    engine.workers.set_limits("io@vm", tasks=0)
    with engine.database.write() as session:
        assert session.servers.record_heartbeat(server, 1)
        assert [one.is_drained for one in session.servers.alive()] == [True]


def test_runs_that_only_drained_servers_can_run_have_an_alarm_with_the_cure(
    engine: Engine,
) -> None:
    register(engine, handlers=NAMES, topics=["default"])
    (run,) = start(engine)
    engine.workers.drain("io@vm")
    alarm_unserved_tasks(engine)
    alarm = engine.get(run).alarm or ""
    assert "io@vm is drained; `flowengine workers undrain io@vm` ends this" in alarm
    engine.workers.undrain("io@vm")
    alarm_unserved_tasks(engine)
    assert engine.get(run).alarm is None


def test_the_alarm_names_every_drained_server(engine: Engine) -> None:
    for name in ("io@vm", "ui@vm"):
        register(engine, name, uuid=name, handlers=NAMES, topics=["default"])
        engine.workers.drain(name)
    (run,) = start(engine)
    alarm_unserved_tasks(engine)
    assert "io@vm, ui@vm are drained; `flowengine workers undrain io@vm`" in (
        engine.get(run).alarm or ""
    )


def test_only_a_drained_worker_is_undrained(engine: Engine) -> None:
    register(engine)
    with pytest.raises(ValueRefused, match="worker 'io@vm' is not drained"):
        engine.workers.undrain("io@vm")
    with pytest.raises(UnknownWorker, match="did you mean 'io@vm'"):
        engine.workers.drain("oi@vm")
    with pytest.raises(ValueRefused, match="from 0 to"):
        engine.workers.set_limits("io@vm", tasks=-1)
    with pytest.raises(ValueRefused, match="from 1 to"):
        engine.workers.set_limits("io@vm", workflows=0)


def test_the_commands_drain_a_worker_and_say_who_did_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/flow.db"
    monkeypatch.setenv("FLOWENGINE_DATABASE_URL", url)
    monkeypatch.setenv("FLOWENGINE_HEARTBEAT_INTERVAL", "0.1")
    with opened(url) as engine:
        register(engine)
        start(engine)
        claim(engine, 1)

    def run(*words: str, expect: int = 0) -> str:
        result = CliRunner().invoke(main, ["workers", *words], env={"COLUMNS": "200"})
        assert result.exit_code == expect, result.output
        return result.output

    drained = run("drain", "io@vm", "--actor", "eva", "--reason", "new disk")
    assert drained.startswith("worker io@vm claims nothing more within 0.1 s")
    assert "draining by person:eva" in run()
    assert run("drain", "io@vm", "--wait", "0.3", expect=1).endswith("holds tasks after 0.3 s\n")
    with opened(url) as engine, engine.database.write() as session:
        session.connection.execute(text("UPDATE flowengine_task SET state = 'completed'"))
    assert run("drain", "io@vm", "--wait", "20") == "worker io@vm holds no task: stop it now\n"
    assert "drained by person:" in run()
    assert run("undrain", "io@vm") == "worker io@vm claims tasks again within 0.1 s\n"
    assert "drained" not in run()
    assert "none: it is drained" in run("set", "io@vm", "--tasks", "0")
