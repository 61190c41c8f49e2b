"""No process of an earlier try lives when the command of the next one begins, whoever is killed."""

from __future__ import annotations

import multiprocessing.process
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from flowengine import Retry, event_facet, workflow
from flowengine.assembly.embedded import Embedded
from flowengine.errors import CommandFailed, TryCancelled
from flowengine.library import command_files, end_left_commands, sh
from flowengine.library.command_files import CommandFile, end_left
from flowengine.library.processes import Command, execute
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.testing import Flow
from flowengine.worker.heartbeat import server_of
from flowengine.worker.pool_children import PoolChildren
from tests.fork_server import context
from tests.registries import empty_registry

#: Ignores SIGTERM, and has a process in the background that has left its group.
_SCRIPT = 'trap "" TERM; setsid sleep 300 & echo $$ $! > "$PIDS"; while true; do sleep 1; done'


@event_facet(name="lost.work")
def lost_work() -> int:
    return 1


@workflow(name="lost.flow")
def lost() -> int:
    return lost_work()


def until(is_true: Callable[[], bool], seconds: float = 60.0) -> None:
    ends = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.01)


def stat(pid: int) -> list[str]:
    """Return the fields behind the name: the state and the parent are the first."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["Z", "0"]


def lives(pid: int) -> bool:
    return stat(pid)[0] != "Z"


class Earlier:
    """A try in a worker of its own, whose command runs."""

    def __init__(self, place: Path) -> None:
        self.files, pids = place / "commands", place / "pids"
        self.worker: multiprocessing.process.BaseProcess = context.Process(
            target=work, args=(str(self.files), str(pids))
        )
        self.worker.start()
        until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        self.pids = [int(word) for word in pids.read_text().split()]
        inner = int(stat(self.pids[0])[1])
        assert self.worker.pid
        self.processes = {
            "worker": self.worker.pid,
            "outer": int(stat(inner)[1]),
            "inner": inner,
        }

    def kill(self, *names: str) -> None:
        assert self.is_alive()
        for name in names:
            os.kill(self.processes[name], signal.SIGKILL)
        until(lambda: not any(lives(self.processes[name]) for name in names))

    def is_alive(self) -> bool:
        return any(map(lives, self.pids))


def work(files: str, pids: str) -> None:
    command = Command(["sh", "-c", _SCRIPT], environment={"PIDS": pids})
    with CommandFile(Path(files), "step", 1) as file:
        execute(command, grace=300.0, file=file)


@pytest.fixture
def earlier(tmp_path: Path) -> Iterator[Earlier]:
    with began(tmp_path) as found:
        yield found


@contextmanager
def began(place: Path) -> Iterator[Earlier]:
    found = Earlier(place)
    try:
        yield found
    finally:
        for pid in (found.processes["worker"], *found.pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        found.worker.join()


@pytest.mark.parametrize(
    "killed",
    [(), ("worker",), ("worker", "outer"), ("worker", "inner"), ("worker", "outer", "inner")],
    ids="-".join,
)
def test_no_process_of_an_earlier_try_lives_when_the_next_command_begins(
    killed: tuple[str, ...], earlier: Earlier
) -> None:
    earlier.kill(*killed)
    with CommandFile(earlier.files, "step", 2) as file:
        file.end_earlier("w.a", lambda: True)
        assert not earlier.is_alive()
    if killed:
        assert not list(earlier.files.iterdir())


@pytest.mark.parametrize(
    "killed", [("worker",), ("outer", "worker"), ("inner", "worker")], ids="-".join
)
def test_a_command_is_killed_at_once_with_its_worker(
    killed: tuple[str, ...], earlier: Earlier
) -> None:
    earlier.kill(*killed)  # its grace after SIGTERM is longer than this test waits
    until(lambda: not earlier.is_alive())


@pytest.mark.parametrize("keepers", [("outer",), ("inner",), ("outer", "inner")], ids="-".join)
def test_nothing_is_left_when_keepers_are_killed(keepers: tuple[str, ...], tmp_path: Path) -> None:
    pids, killed = tmp_path / "pids", []

    def kill() -> bool:
        if not killed and pids.exists() and len(pids.read_text().split()) == 2:
            killed.extend(int(word) for word in pids.read_text().split())
            inner = int(stat(killed[0])[1])
            found = {"inner": inner, "outer": int(stat(inner)[1])}
            for name in keepers:
                os.kill(found[name], signal.SIGKILL)
        return False

    command = Command(["sh", "-c", _SCRIPT], environment={"PIDS": str(pids)})
    with CommandFile(tmp_path / "files") as file:
        with pytest.raises(CommandFailed, match="its keeper was killed"):
            execute(command, is_cancelled=kill, file=file)
        assert not any(map(lives, killed))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many processes there are, one pass has the time to look at all of them."""
    monkeypatch.setattr(command_files, "_LEFT", 60.0)


@pytest.mark.usefixtures("patient")
def test_a_worker_that_starts_kills_what_killed_keepers_have_left(tmp_path: Path) -> None:
    with began(tmp_path) as earlier:
        end_left(earlier.files)
        assert earlier.is_alive()
        earlier.kill("outer", "inner", "worker")
        earlier.worker.join()
        end_left(earlier.files)
        assert not earlier.is_alive()
        assert not list(earlier.files.iterdir())


def test_a_worker_that_lives_kills_what_a_killed_worker_and_its_keepers_have_left(
    tmp_path: Path,
) -> None:
    settings = Settings(
        database_url=f"sqlite:///{tmp_path}/flows.db",
        spool_directory=str(tmp_path),
        commands=True,
        watchdog_interval=0.1,
    )
    with empty_registry(), closing(Embedded(settings)), began(tmp_path) as earlier:
        earlier.kill("outer", "inner", "worker")
        until(lambda: not earlier.is_alive())


@pytest.mark.usefixtures("patient")
def test_a_try_is_lost_when_the_commands_of_its_pool_child_are_ended(tmp_path: Path) -> None:
    """The next try may begin as soon as the loss is reported, on any machine."""
    settings = Settings(
        database_url=f"sqlite:///{tmp_path}/flows.db",
        spool_directory=str(tmp_path),
        commands=True,
    )
    with empty_registry(), Flow(store_url=settings.database_url) as flow:
        alive = list[bool]()
        flow.engine.start(lost.program(), lost.name, {})
        with began(tmp_path) as earlier:
            server = server_of("s", "b" * 32, "worker")
            child = WorkerIdentity("s", server.boot_id, earlier.processes["worker"])
            assert flow.engine.claim(["lost.work"], "default", child, most=1)
            earlier.kill("outer", "inner", "worker")
            earlier.worker.join()

            def tidy() -> None:
                end_left_commands(settings)
                alive.append(earlier.is_alive())

            PoolChildren(settings, server, tidy=tidy).check(flow.engine)
        (run,) = flow.engine.list()
        assert alive == [False]
        assert sum(task.losses for task in flow.engine.tasks(run.id)) == 1


def test_a_try_that_has_lost_its_lease_does_not_end_the_next_one(earlier: Earlier) -> None:
    with CommandFile(earlier.files, "step", 0) as file:
        with pytest.raises(TryCancelled):
            file.end_earlier("w.a", lambda: False)
        assert earlier.is_alive()


def test_commands_of_one_try_and_of_other_steps_do_not_end_each_other(earlier: Earlier) -> None:
    for step, attempt in (("step", 1), ("other", 2)):
        with CommandFile(earlier.files, step, attempt) as file:
            file.end_earlier("w.a", lambda: False)
    assert earlier.is_alive()


def test_a_try_after_a_timeout_begins_when_the_command_of_the_first_has_ended(
    tmp_path: Path,
) -> None:
    pid = tmp_path / "pid"
    script = (
        'kill -0 "$(cat $PID)" 2>/dev/null && echo lives; '
        '[ -e $PID ] && exec echo $FLOWENGINE_TRY; trap "" TERM; '
        "echo $$ > $PID; while true; do sleep 0.05; done"
    )

    @workflow(name="slow")
    def slow() -> object:
        patient = sh.with_options(retry=Retry(attempts=2, first_wait=0.01), timeout=1)
        return patient(script, {"PID": str(pid)})

    settings = Settings(
        database_url=f"sqlite:///{tmp_path}/flows.db",
        spool_directory=str(tmp_path / "spool"),
        commands=True,
        heartbeat_interval=0.1,
        watchdog_interval=0.1,
    )
    with empty_registry(), closing(Embedded(settings)) as embedded:
        run = embedded.engine.start(slow.program(), slow.name, {})
        assert run.result(timeout=30)["stdout"] == "2\n"
