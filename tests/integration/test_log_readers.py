"""Readers of the log of a run get every line once, in order, whatever is committed when."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text

from flowengine import event_facet, workflow
from flowengine.engine import Engine, Run, merged_lines, run_logs
from flowengine.engine.log_entries import LogEntry
from flowengine.errors import InvalidFilter, UnknownRun
from flowengine.evaluator.triggers import Succeeded
from flowengine.settings import Settings
from flowengine.step_logs.cap import gap_text
from flowengine.step_logs.chunks import LogChunk
from flowengine.step_logs.lines import body_of, encoded_line
from flowengine.store.claims import WorkerIdentity
from tests.integration.engines import opened, watched
from tests.servers import PostgresServer

IDENTITY = WorkerIdentity("s", "b" * 32, 1)
BEGAN = 1_700_000_000_000


@event_facet
def first(n: int) -> int:
    return n


@event_facet
def second(n: int) -> int:
    return n


@workflow
def both(n: int) -> int:
    return first(n) + second(n)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with opened(database_url) as engine:
        yield engine


class Written:
    """A run of two tries whose lines the test writes."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.run: Run[Any] = engine.start(both.program(), both.name, {"n": 1})
        names = [first.name, second.name]
        claim = engine.claim_batch(names, "default", IDENTITY, most=2, quick=names)
        self.tasks = sorted(claim.tasks, key=lambda task: task.name)

    def chunk(self, of: int, number: int, *lines: tuple[int, int, str]) -> LogChunk:
        """A chunk from lines given as seconds, level and text."""
        encoded = [encoded_line(BEGAN + 1_000 * at, lv, "log", "shop", t) for at, lv, t in lines]
        task = self.tasks[of]
        about = (self.run.id, task.uuid, task.lease)
        return LogChunk(*about, number, len(encoded), body_of(encoded))

    def store(self, *chunks: LogChunk) -> None:
        self.engine.log_store.add(chunks)

    def end(self) -> None:
        for task in self.tasks:
            assert self.engine.report(task, Succeeded({"result": 1}))


INFO, WARNING = logging.INFO, logging.WARNING


@pytest.fixture
def written(engine: Engine) -> Written:
    made = Written(engine)
    made.store(
        made.chunk(0, 1, (1, INFO, "a1"), (3, WARNING, "a2")),
        made.chunk(0, 3, (5, INFO, "a3")),
        made.chunk(1, 1, (2, INFO, "b1"), (4, logging.ERROR, "b2"), (6, INFO, "b3")),
    )
    return made


def texts(lines: Any) -> list[str]:
    return [line.text for line in lines]


def test_the_lines_of_all_tries_are_in_the_order_of_time(written: Written) -> None:
    found = list(written.run.logs())
    assert texts(found) == ["a1", "b1", "a2", "b2", "a3", "b3"]
    assert found[2] == LogEntry(
        run_id=written.run.id,
        path="both.first",
        facet=first.name,
        try_number=1,
        task_id=written.tasks[0].uuid,
        lease=1,
        number=2,
        at=BEGAN + 3_000,
        level="WARNING",
        stream="log",
        logger="shop",
        text="a2",
    )


FILTERS: list[tuple[dict[str, Any], list[str]]] = [
    ({"step": "first"}, ["a1", "a2", "a3"]),
    ({"step": "both.second"}, ["b1", "b2", "b3"]),
    ({"step": ["first", "second"]}, ["a1", "b1", "a2", "b2", "a3", "b3"]),
    ({"step": "irst"}, []),
    ({"try_number": 2}, []),
    ({"level": "warning"}, ["a2", "b2"]),
    ({"level": logging.ERROR}, ["b2"]),
    ({"grep": "[ab]3"}, ["a3", "b3"]),
    ({"since": BEGAN + 4_000}, ["b2", "a3", "b3"]),
    ({"since": datetime.fromtimestamp((BEGAN + 6_000) / 1000, UTC)}, ["b3"]),
    ({"since": timedelta(hours=1)}, []),
    ({"last": 2}, ["a3", "b3"]),
    ({"last": 4}, ["a2", "b2", "a3", "b3"]),
    ({"last": 0}, []),
    ({"last": 1, "step": "first", "level": "WARNING"}, ["a2"]),
    ({"last": 100}, ["a1", "b1", "a2", "b2", "a3", "b3"]),
]


def test_filters_choose_lines(written: Written) -> None:
    for filters, expected in FILTERS:
        assert texts(written.run.logs(**filters)) == expected, filters


def test_the_last_lines_of_many_tries_are_read_from_few_chunks(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries, read = 300, list[int]()
    with written.engine.database.write() as session:
        raise_lease = "UPDATE flowengine_task SET lease = %s WHERE uuid = %s RETURNING 1"
        session.rows(raise_lease, (tries, written.tasks[0].uuid))
        for lease in range(2, tries + 1):
            lines = [(60 * lease, INFO, f"{lease}")] * 9
            session.logs.add([written.chunk(0, 1, *lines)._replace(lease=lease)])
        stored = "UPDATE flowengine_log SET created = %s + 60000 * lease WHERE run_id = %s"
        session.rows(f"{stored} RETURNING 1", (BEGAN + 500, written.run.id))
    store = written.engine.log_store
    found = store.last_chunks

    def counted(cursors: Any) -> Any:
        read.append(len(cursors))
        return found(cursors)

    monkeypatch.setattr(store, "last_chunks", counted)
    assert texts(written.run.logs(last=12)) == ["299"] * 3 + ["300"] * 9
    assert sum(read) <= 30, "of 300 tries"


def test_the_whole_log_of_many_tries_holds_a_bounded_part_of_their_lines(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries, made = 120, list[merged_lines.Portion]()
    with written.engine.database.write() as session:
        raise_lease = "UPDATE flowengine_task SET lease = %s WHERE uuid = %s RETURNING 1"
        session.rows(raise_lease, (tries, written.tasks[0].uuid))
        chunks = []
        for lease in range(2, tries + 1):
            # Some of them write at the same time.
            lines = [(20 * lease + 7 * n, INFO, f"{lease} {n}") for n in range(12)]
            chunks.append(written.chunk(0, 1, *lines)._replace(lease=lease))
        session.logs.add(chunks)
    whole = list(written.run.logs())
    assert [line.at for line in whole] == sorted(line.at for line in whole)
    assert len(whole) == 6 + 12 * (tries - 1)
    portion = run_logs.Portion

    def counted(*about: Any) -> merged_lines.Portion:
        made.append(portion(*about))
        return made[-1]

    monkeypatch.setattr(run_logs, "Portion", counted)
    monkeypatch.setattr(merged_lines, "HELD_CHARACTERS", 10_000)
    found, held = [], 0
    for line in written.run.logs():
        found.append(line)
        held = max(held, sum(len(one.entries) for one in made))
    assert found == whole
    assert held < tries + 150, "of 1,400 lines: one for each try, and those of ten"


def test_a_filter_that_makes_no_sense_is_refused(written: Written) -> None:
    for name, value in [("level", "loud"), ("grep", "("), ("since", "soon"), ("last", -1)]:
        with pytest.raises(InvalidFilter):
            written.run.logs(**{name: value})


def test_an_unknown_run_has_no_log(engine: Engine) -> None:
    with pytest.raises(UnknownRun):
        engine.logs("0" * 32)


class Following:
    """A reader in a thread."""

    def __init__(self, run: Run[Any], **options: Any) -> None:
        self.found: list[LogEntry] = []
        self._log = run.logs(follow=True, **options)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._log:
            self.found.append(line)

    def wait(self, number: int) -> list[str]:
        ends = time.monotonic() + 20
        while len(self.found) < number and time.monotonic() < ends:
            time.sleep(0.01)
        return texts(self.found)

    def ended(self) -> list[str]:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return texts(self.found)


def test_a_reader_that_follows_gets_lines_until_the_run_has_ended(written: Written) -> None:
    reader = Following(written.run, last=1)
    assert reader.wait(1) == ["b3"]
    written.store(written.chunk(0, 4, (7, INFO, "a4")))
    assert reader.wait(2) == ["b3", "a4"]
    written.store(written.chunk(1, 4, (8, INFO, "b4")))
    written.end()
    assert reader.ended() == ["b3", "a4", "b4"]


def test_a_chunk_that_is_committed_late_is_not_missed(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row is older than others that were seen: the reader looks behind every cursor."""
    import flowengine.engine.run_logs as run_logs

    monkeypatch.setattr(run_logs, "_SWEEP_SECONDS", 0.3)
    reader = Following(written.run)
    assert len(reader.wait(6)) == 6
    written.store(written.chunk(1, 4, (8, INFO, "b4")))
    assert reader.wait(7)[-1] == "b4"
    late = written.chunk(0, 4, (7, INFO, "late"))
    with written.engine.database.write() as session:  # a transaction that began an hour ago
        session.logs.add([late])
        session.rows(
            "UPDATE flowengine_log SET created = created - 3600000 "
            "WHERE task_id = %s AND first_line = 4 RETURNING 1",
            (late.task_id,),
        )
    assert reader.wait(8)[-1] == "late"
    written.end()
    assert reader.ended() == ["a1", "b1", "a2", "b2", "a3", "b3", "b4", "late"]


def test_lines_wait_for_those_before_them_that_are_stored_later(written: Written) -> None:
    """A report may commit after a delivery that began later."""
    reader = Following(written.run)
    assert len(reader.wait(6)) == 6
    written.store(written.chunk(0, 6, (9, INFO, "a6")), written.chunk(1, 4, (7, INFO, "b4")))
    assert reader.wait(7)[6:] == ["b4"]
    written.store(written.chunk(0, 7, (10, INFO, "a7")))
    written.store(written.chunk(0, 4, (7, INFO, "a4"), (8, INFO, "a5")))
    assert reader.wait(11)[6:] == ["b4", "a4", "a5", "a6", "a7"]
    written.store(written.chunk(1, 6, (9, INFO, "b6")))
    written.end()
    written.store(written.chunk(1, 5, (8, INFO, "b5")))
    assert reader.ended()[11:] == ["b5", "b6"]
    assert sorted(texts(written.run.logs())) == sorted(texts(reader.found))


def test_late_lines_follow_the_last_lines_that_were_asked_for(written: Written) -> None:
    written.store(written.chunk(0, 6, (9, INFO, "a6")))
    reader = Following(written.run, last=1)
    assert reader.wait(1) == ["a6"]
    written.store(written.chunk(0, 4, (7, INFO, "a4"), (8, INFO, "a5")))
    assert reader.wait(3) == ["a6", "a4", "a5"]
    written.end()
    assert reader.ended() == ["a6", "a4", "a5"]


def test_lines_do_not_wait_for_ever_and_late_ones_are_shown_too(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowengine.engine.run_logs._GAP_SECONDS", 0.2)
    reader = Following(written.run)
    assert len(reader.wait(6)) == 6
    written.store(written.chunk(0, 6, (9, INFO, "a6")))
    told, after = reader.wait(8)[6:]
    assert told.startswith("… lines 4 to 5 of this try are not stored")
    assert after == "a6"
    assert texts(written.run.logs())[6:] == [told, after], "as a reader that does not follow"
    written.store(written.chunk(0, 4, (7, INFO, "a4"), (8, INFO, "a5")))
    assert reader.wait(10)[8:] == ["a4", "a5"]
    written.end()
    assert len(reader.ended()) == 10, "no line twice"


def test_lines_that_the_log_says_are_left_out_are_not_waited_for(written: Written) -> None:
    reader = Following(written.run)
    assert len(reader.wait(6)) == 6
    chunk = written.chunk(0, 13, (9, WARNING, gap_text(10)), (9, INFO, "tail"))
    written.store(chunk._replace(body=chunk.body.replace('"shop"', '"flowengine"', 1)))
    began = time.monotonic()
    assert reader.wait(8)[6:] == [gap_text(10), "tail"]
    assert time.monotonic() - began < 4
    written.end()
    assert reader.ended()[6:] == [gap_text(10), "tail"]


def test_a_reader_misses_none_of_many_chunks_of_one_millisecond(written: Written) -> None:
    number, task = 1_200, written.tasks[0].uuid
    reader = Following(written.run)
    assert len(reader.wait(6)) == 6
    with written.engine.database.write() as session:
        raise_lease = "UPDATE flowengine_task SET lease = %s WHERE uuid = %s RETURNING 1"
        session.rows(raise_lease, (number, task))
    line = written.chunk(0, 1, (7, INFO, "x"))
    written.store(*(line._replace(lease=lease) for lease in range(2, number + 1)))
    assert len(reader.wait(number + 5)) == number + 5
    with written.engine.database.write() as session:
        session.rows(raise_lease, (1, task))
    written.end()
    assert len(reader.ended()) == number + 5
    assert len({line.lease for line in reader.found}) == number


def test_a_coroutine_follows_too(written: Written) -> None:
    async def read() -> list[str]:
        return [line.text async for line in written.run.logs(follow=True)]

    async def both_at_once() -> list[str]:
        reading = asyncio.create_task(read())
        await asyncio.sleep(0.05)
        await asyncio.to_thread(written.end)
        return await reading

    assert asyncio.run(both_at_once()) == ["a1", "b1", "a2", "b2", "a3", "b3"]


def test_a_reader_ends_after_its_timeout(written: Written) -> None:
    assert len(list(written.run.logs(follow=True, timeout=0.2))) == 6


def test_a_reader_sees_other_tenants_logs_as_little_as_their_runs(database_url: str) -> None:
    with opened(database_url) as engine:
        run = engine.start(both.program(), both.name, {"n": 1}, tenant="acme")
        with pytest.raises(UnknownRun):
            engine.logs(run.id, tenant="other")
    bound = opened(database_url, settings=Settings(tenant="other"))
    with bound as engine, pytest.raises(UnknownRun):
        engine.logs(run.id)


# --- cost ---


def add_lines(engine: Engine, written: Written, number: int) -> None:
    """Add that many lines, 100 in a chunk, to the first try."""
    body = json.dumps(json.loads(written.chunk(0, 1, *[(1, INFO, "x")] * 100).body))
    task = written.tasks[0]
    with engine.database.write() as session:
        session.rows(
            "INSERT INTO flowengine_log (task_id, lease, first_line, run_id, line_count, created, "
            "body) SELECT %s, 1, 100 * n + 1, %s, 100, n, %s "
            "FROM generate_series(0, %s / 100 - 1) n RETURNING 1",
            (task.uuid, written.run.id, body, number),
        )


@contextmanager
def counted(engine: Engine) -> Iterator[list[str]]:
    statements: list[str] = []

    def note(sql: str, _given: Any = None) -> None:
        statements.append(sql)

    def listen(_c: Any, _cursor: Any, sql: str, *_: Any) -> None:
        note(sql)

    event.listen(engine.database.engine, "before_cursor_execute", listen)
    with watched(engine, note):
        yield statements
    event.remove(engine.database.engine, "before_cursor_execute", listen)


def cost_of_following(postgres: PostgresServer, lines: int) -> tuple[int, int]:
    """Return the statements, and the rows of logs that are read, for 20 lines at that place."""
    url = postgres.new_database()
    with opened(url) as writer:
        written = Written(writer)
        add_lines(writer, written, lines)
        with opened(url) as engine:
            items = engine.logs(written.run.id, last=1, follow=True)._items
            assert isinstance(next(items), LogEntry)
            assert isinstance(next(items), float)
            with counted(engine) as statements:
                for number in range(20):
                    line = written.chunk(0, lines + number + 1, (2, INFO, f"new {number}"))
                    written.store(line)
                    while not isinstance(entry := next(items), LogEntry):
                        pass
                    assert entry.text == f"new {number}"
                    assert isinstance(next(items), float)
    observer = create_engine(url)
    with observer.connect() as connection:  # a backend reports its reads when it ends
        query = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = :t"
        read = connection.execute(text(query), {"t": "flowengine_log"}).scalar_one()
    observer.dispose()
    postgres.drop_database(url)
    return len(statements), read


def test_following_costs_the_same_at_the_first_and_at_the_millionth_line(
    postgres: PostgresServer,
) -> None:
    at_first = cost_of_following(postgres, 100)
    at_millionth = cost_of_following(postgres, 1_000_000)
    print(f"statements and rows at the first line {at_first}, at the millionth {at_millionth}")
    assert at_millionth[0] == at_first[0] <= 5 * 20
    assert at_millionth[1] <= at_first[1] + 20
