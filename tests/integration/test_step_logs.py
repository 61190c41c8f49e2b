"""Lines that the code of a step prints and logs are kept, and cost nothing if there are none."""

from __future__ import annotations

import asyncio
import contextvars
import io
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import event

from flowengine import Secret, event_facet, foreach, workflow
from flowengine.authoring import Workflow, event_facet_names
from flowengine.engine import Engine, Run
from flowengine.settings import Settings
from flowengine.step_logs import segments, spool, try_log
from flowengine.step_logs.chunks import TryKey
from flowengine.step_logs.lines import LogLine, lines_of
from flowengine.step_logs.redaction import Redactor
from flowengine.step_logs.spool import LogSpool
from flowengine.step_logs.try_log import TryLog
from flowengine.store.claims import WorkerIdentity
from flowengine.store.codec import opened as unsealed
from flowengine.store.codec import sealed
from flowengine.store.database import Database
from flowengine.testing import Flow
from flowengine.worker import TaskWorker, step_logs, tries
from flowengine.worker.orphaned_log_lines import deliver_orphaned_log_lines, directory_of, scope_of
from tests.integration.engines import opened, watched

KEYS = "0123456789abcdef0123456789abcdef"
CODEC = "flowengine.payload_codecs:AesGcmCodec"
alone = logging.getLogger("tests.not_propagated")


@event_facet
def silent(n: int) -> int:
    return n + 1


@event_facet
def ten_lines(n: int) -> int:
    for number in range(10):
        print(f"line {number} of {n}")
    return n + 1


@event_facet
def all_kinds(n: int) -> int:
    print("out", n)
    print("err", n, file=sys.stderr)
    print("without a newline", end="")
    logging.getLogger("shop").warning("careful %d", n)
    alone.error("does not propagate")
    logging.getLogger("flowengine").warning("of the engine")
    try:
        raise ValueError("oops")
    except ValueError:
        logging.getLogger("shop").exception("failed")
    return n


@event_facet
async def in_a_coroutine(n: int) -> int:
    print(f"begun {n}")
    await asyncio.sleep(0.01)
    await asyncio.to_thread(print, f"in a thread {n}")
    return n


@event_facet
def in_a_thread(n: int) -> int:
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(print, "in a thread"))
    thread.start()
    thread.join()
    return n


@event_facet
def prints(n: int) -> int:
    for number in range(n):
        print(f"line {number}")
    return n


@event_facet
def fails(n: int) -> int:
    print("before it fails")
    raise ValueError("no")


@event_facet
def tells(token: Secret) -> int:
    print("the token is", token.get_secret_value())
    logging.getLogger("shop").warning("%s", json.dumps({"token": token.get_secret_value()}))
    return 1


@workflow
def quiet(n: int) -> int:
    return silent(silent(n))


@workflow
def chatty(n: int) -> int:
    return ten_lines(ten_lines(n))


@workflow
def of_all_kinds(n: int) -> int:
    return all_kinds(n)


@workflow
def wide(ns: list[int]) -> list[int]:
    return foreach(ns, lambda n: ten_lines(n))


@workflow
def coroutines(ns: list[int]) -> list[int]:
    return foreach(ns, lambda n: in_a_coroutine(n))


@workflow
def threads(n: int) -> int:
    return in_a_thread(n)


@workflow
def many_lines(n: int) -> int:
    return prints(n)


@workflow
def failing(n: int) -> int:
    return fails(n)


@workflow
def telling(token: Secret) -> int:
    return tells(token)


@pytest.fixture(autouse=True)
def not_propagated() -> Iterator[None]:
    alone.propagate, alone.handlers = False, [logging.NullHandler()]
    yield
    alone.propagate, alone.handlers = True, []


class Working:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        identity = WorkerIdentity("s", "b" * 32, 1)
        self.worker = TaskWorker(engine, identity, event_facet_names)

    def run(self, a_workflow: Workflow[..., Any], *inputs: Any) -> Run[Any]:
        given = a_workflow.inputs(*inputs)
        run = self.engine.start(a_workflow.program(), a_workflow.name, given)
        while not run.info().is_final:
            self.worker.drain("default")
        return run

    def lines(self, run: Run[Any]) -> dict[str, list[LogLine]]:
        """The lines by the path of the step, without the name of the workflow."""
        found: dict[str, list[LogLine]] = {}
        for task in self.engine.tasks(run.id):
            for chunk in chunks_of(self.engine.database, task.uuid):
                path = task.step_path.partition(".")[2]
                found.setdefault(path, []).extend(lines_of(chunk[1], chunk[0]))
        return found


def chunks_of(database: Database, task_id: str) -> list[tuple[int, str]]:
    with database.read() as session:
        return [
            (row[0], row[1])
            for row in session.rows(
                "SELECT first_line, body FROM flowengine_log WHERE task_id = %s "
                "ORDER BY lease, first_line",
                (task_id,),
            )
        ]


@contextmanager
def working(url: str, tmp_path: Path, **more: Any) -> Iterator[Working]:
    # Slices and intervals without end: how long a machine takes must not change the counts.
    settings = Settings(
        **{
            "spool_directory": str(tmp_path / "spool"),
            "heartbeat_interval": 3_600,
            "worker_time_slice": 60,
            "batch_max_wait": 60,
            **more,
        }
    )
    with opened(url, settings=settings) as engine:
        work = Working(engine)
        yield work
        work.worker.end()


@pytest.fixture
def work(database_url: str, tmp_path: Path) -> Iterator[Working]:
    with working(database_url, tmp_path) as work:
        yield work


def texts(lines: list[LogLine]) -> list[str]:
    return [line.text for line in lines]


def test_streams_and_loggers_are_kept_with_level_and_number(work: Working) -> None:
    lines = work.lines(work.run(of_all_kinds, 3))["all_kinds"]
    assert [line.number for line in lines] == list(range(1, len(lines) + 1))
    kinds = [(line.stream, line.level, line.logger) for line in lines]
    assert texts(lines)[:5] == ["out 3", "err 3", "careful 3", "does not propagate", "failed"]
    assert kinds[:5] == [
        ("stdout", logging.INFO, ""),
        ("stderr", logging.WARNING, ""),
        ("log", logging.WARNING, "shop"),
        ("log", logging.ERROR, "tests.not_propagated"),
        ("log", logging.ERROR, "shop"),
    ]
    assert "ValueError: oops" in texts(lines)
    assert texts(lines)[-1] == "without a newline"
    assert "of the engine" not in texts(lines)


def test_output_still_goes_where_it_went(
    work: Working, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    monkeypatch.setattr(logging.getLogger("shop"), "handlers", [handler])
    lines = work.lines(work.run(of_all_kinds, 4))["all_kinds"]
    print("outside of steps")
    output = capsys.readouterr()
    assert output.out == "out 4\nwithout a newlineoutside of steps\n"
    assert output.err.startswith("err 4\n")
    assert written.getvalue().startswith("careful 4\nfailed\n")
    assert "outside of steps" not in texts(lines)


def test_a_handler_that_writes_to_a_stream_does_not_double_a_line(
    work: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.run(threads, 1)  # from here on the streams are captured
    monkeypatch.setattr(logging.getLogger("shop"), "handlers", [logging.StreamHandler(sys.stderr)])
    lines = work.lines(work.run(of_all_kinds, 5))["all_kinds"]
    assert texts(lines).count("careful 5") == 1


def test_the_lines_of_concurrent_coroutines_and_their_threads_are_kept_apart(work: Working) -> None:
    found = work.lines(work.run(coroutines, list(range(5))))
    assert len(found) == 5
    for path, lines in found.items():
        number = path.partition("[")[2].partition("]")[0]
        assert texts(lines) == [f"begun {number}", f"in a thread {number}"]
        assert [line.number for line in lines] == [1, 2]


def test_a_thread_with_the_context_of_a_step_writes_to_its_log(work: Working) -> None:
    assert texts(work.lines(work.run(threads, 1))["in_a_thread"]) == ["in a thread"]


def test_a_failed_try_has_its_lines(work: Working) -> None:
    assert texts(work.lines(work.run(failing, 1))["fails"]) == ["before it fails"]


def test_each_item_of_a_wide_loop_has_its_lines(work: Working) -> None:
    found = work.lines(work.run(wide, list(range(20))))
    assert len(found) == 20
    assert all(len(lines) == 10 for lines in found.values())


def test_a_secret_that_a_step_was_given_is_masked(database_url: str, tmp_path: Path) -> None:
    with working(database_url, tmp_path, secret_keys=KEYS) as work:
        from flowengine.secret_keys import set_secret_key_source

        outer = set_secret_key_source(lambda: KEYS)
        try:
            run = work.run(telling, Secret('hunter2 "x"'))
        finally:
            set_secret_key_source(outer)
        lines = work.lines(run)["tells"]
        assert [text.replace("*", "") for text in texts(lines)] == [
            "the token is ",
            '{"token": ""}',
        ]
    spooled = [path.read_text() for path in (tmp_path / "spool").rglob("*") if path.is_file()]
    assert not any("hunter2" in text for text in spooled)


def test_nothing_is_kept_where_capture_is_off(database_url: str, tmp_path: Path) -> None:
    with working(database_url, tmp_path, log_capture=False) as work:
        assert work.lines(work.run(chatty, 1)) == {}


# --- cost ---


@contextmanager
def counted(work: Working) -> Iterator[list[str]]:
    statements: list[str] = []

    def note(sql: str, _given: Any = None) -> None:
        statements.append(sql)

    def listen(_c: Any, _cursor: Any, sql: str, *_: Any) -> None:
        note(sql)

    event.listen(work.engine.database.engine, "before_cursor_execute", listen)
    with watched(work.engine, note):
        yield statements
    event.remove(work.engine.database.engine, "before_cursor_execute", listen)


def test_a_silent_step_costs_no_file_and_ten_lines_cost_no_statement(
    database_url: str, tmp_path: Path
) -> None:
    numbers = {}
    with working(database_url, tmp_path) as work:
        work.run(quiet, 1)
        assert not (tmp_path / "spool" / "logs").exists()
        for a_workflow in (quiet, chatty):
            for _ in range(3):
                work.run(a_workflow, 1)  # it learns how quick the facets are
            with counted(work) as statements:
                run = work.run(a_workflow, 1)
            # SQLite has no round trips: each section of a commit is a statement of its own.
            logs = [sql for sql in statements if sql.startswith("INSERT OR IGNORE INTO flowengine")]
            numbers[a_workflow.name] = len(statements) - len(logs)
        lines = work.lines(run)
        assert [len(of_step) for of_step in lines.values()] == [10, 10]
    quiet_number, chatty_number = numbers.values()
    assert quiet_number == chatty_number, numbers


def test_a_wide_loop_of_ten_lines_each_costs_no_statement_more(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has no round trips")
    monkeypatch.setattr(step_logs, "_PAUSE", 60)  # however slow the machine is
    with working(database_url, tmp_path) as work, counted(work) as statements:
        work.run(wide, list(range(30)))
        assert not [sql for sql in statements if sql.startswith("INSERT INTO flowengine_log")]


def test_lines_do_not_make_the_batches_of_a_quick_facet_smaller(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even on a disk that takes two milliseconds for each line, if a try takes one without it."""
    numbers, now = [], 0.0
    write = os.write

    def slow(file: int, content: bytes) -> int:
        nonlocal now
        now += 0.002
        return write(file, content)

    def clock() -> float:
        nonlocal now
        now += 0.001
        return now

    monkeypatch.setattr(tries, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(try_log, "perf_counter", lambda: now)
    with working(database_url, tmp_path, quick_seconds=0.015) as work:
        for patched in (write, slow):
            monkeypatch.setattr(segments.os, "write", patched)
            work.run(wide, list(range(20)))
            with counted(work) as statements:
                work.run(wide, list(range(20)))
            numbers.append(sum("flowengine_log" not in sql for sql in statements))
    assert numbers[0] == numbers[1]


# --- files of other processes ---


def left_by_a_dead_process(
    engine: Engine, run_id: str, task_id: str, seal: Callable[[str], str] = str
) -> None:
    child = os.fork()
    if child == 0:
        place = directory_of(engine.settings)
        lines = LogSpool(place, scope=scope_of(engine), max_bytes=1 << 20, seal=seal)
        log = TryLog(lines, TryKey(run_id, task_id, 1), Redactor(), 1 << 20)
        log.write("stdout", "its last words\n")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def test_lines_of_a_dead_process_are_stored_once_by_another(
    database_url: str, tmp_path: Path
) -> None:
    with working(database_url, tmp_path) as work:
        run = work.run(quiet, 1)
        task_id = work.engine.tasks(run.id)[0].uuid
        left_by_a_dead_process(work.engine, run.id, task_id)
        (file,) = directory_of(work.engine.settings).iterdir()
        content = file.read_bytes()
        assert deliver_orphaned_log_lines(work.engine) == 1
        assert [line.text for line in run.logs()] == ["its last words"]
        file.write_bytes(content)  # it died before it removed the file
        assert deliver_orphaned_log_lines(work.engine) == 1
        assert [line.text for line in run.logs()] == ["its last words"]
        assert list(directory_of(work.engine.settings).iterdir()) == []


def test_lines_for_another_database_are_left_alone(database_url: str, tmp_path: Path) -> None:
    with working(f"sqlite:///{tmp_path}/other.db", tmp_path) as other:
        left_by_a_dead_process(other.engine, "r" * 32, "t" * 32)
        with working(database_url, tmp_path) as work:
            assert deliver_orphaned_log_lines(work.engine) == 0
        assert deliver_orphaned_log_lines(other.engine) == 1


def test_a_file_that_cannot_be_read_stops_none_behind_it(
    database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with working(database_url, tmp_path) as work:
        left_by_a_dead_process(work.engine, "r" * 32, "t" * 32)
        (good,) = directory_of(work.engine.settings).iterdir()
        bad = good.with_name(f"{scope_of(work.engine)}-0-0-x.lines")
        bad.write_text("!encoded by a codec that this process does not have\n")
        assert deliver_orphaned_log_lines(work.engine) == 1
        assert [path.suffix for path in good.parent.iterdir()] == [".undeliverable"]
        assert "cannot be read" in caplog.text


def test_a_payload_codec_encodes_lines_on_disk_and_in_the_database(
    database_url: str, tmp_path: Path
) -> None:
    codec = {"payload_codec": CODEC, "payload_keys": f"k1={KEYS * 2}"}
    with working(database_url, tmp_path, **codec) as work:
        run = work.run(chatty, 1)
        task_id = work.engine.tasks(run.id)[0].uuid
        assert all(body.startswith("!") for _, body in chunks_of(work.engine.database, task_id))
        assert len(list(run.logs())) == 20
        left_by_a_dead_process(work.engine, run.id, "t" * 32, seal=sealed)
        files = directory_of(work.engine.settings).iterdir()
        (file,) = [path for path in files if f"-{os.getpid()}-" not in path.name]
        assert b"last words" not in file.read_bytes()
        with open(file, "ab") as torn:
            torn.write(file.read_bytes()[:40])  # a second line, which the kill has cut off
        assert deliver_orphaned_log_lines(work.engine) == 1
        ((_, body),) = chunks_of(work.engine.database, "t" * 32)
        assert [line.text for line in lines_of(unsealed(body), 1)] == ["its last words"]


def test_lines_wait_for_the_database_and_are_then_stored_in_order(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that are more than memory holds, or one statement stores."""
    monkeypatch.setattr(spool, "_MEMORY_BYTES", 100_000)
    monkeypatch.setattr(step_logs, "_PAUSE", 3_600.0)  # this test makes the passes of the thread
    with working(database_url, tmp_path) as work:
        logs = work.worker.logs
        assert logs is not None
        add, refused = work.engine.log_store.add, []

        def refuse(chunks: Any) -> None:
            refused.append(chunks)
            raise OSError("the database is away")

        monkeypatch.setattr(work.engine.log_store, "add", refuse)
        run = work.engine.start(many_lines.program(), many_lines.name, {"n": 15_000})
        work.worker.drain("default")
        assert run.info().is_final
        assert refused
        monkeypatch.setattr(work.engine.log_store, "add", add)
        logs.deliver()
        assert [line.text for line in run.logs()] == [f"line {n}" for n in range(15_000)]


def test_an_error_of_the_log_does_not_keep_a_step_from_its_report(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("a defect of the log")

    with working(database_url, tmp_path) as work:
        for name in ("end", "take"):
            with monkeypatch.context() as patch:
                patch.setattr(TryLog, name, fail)
                assert work.run(chatty, 1).result() == 3
        monkeypatch.setattr(LogSpool, "stored_form", fail)
        assert work.run(chatty, 1).result() == 3


def test_lines_that_no_thread_can_store_later_are_named_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("a defect of the log")

    monkeypatch.setattr(LogSpool, "stored_form", fail)
    with Flow() as flow:
        run = flow.start(chatty, n=1)
        flow.settle()
        assert run.result() == 3
    lost = [r for r in caplog.records if r.__dict__.get("action") == "log_lines_lost"]
    assert [record.__dict__["run"] for record in lost] == [run.id, run.id]
    assert f"log lines of chatty.ten_lines of run {run.id} are lost" in lost[0].getMessage()
