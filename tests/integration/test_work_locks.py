"""Locks on work: one holder at a time, fenced, and ended by the clock of the database."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from flowengine.engine import Engine
from flowengine.errors import ValueRefused
from flowengine.store.servers import ServerState
from flowengine.store.work_locks import LockMetaData
from flowengine.worker.heartbeat import server_of
from tests.integration.engines import MovedClock, opened
from tests.integration.threads import in_threads

pytestmark = pytest.mark.each_database

MINUTE = 60_000


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def engine(database_url: str, clock: MovedClock) -> Iterator[Engine]:
    with opened(database_url, clock=clock) as engine:
        yield engine


def test_a_lock_has_one_holder_until_it_is_released(engine: Engine) -> None:
    mine, other = engine.locks, engine.locks.held_by()
    assert mine.acquire_lock("import:42", MINUTE)
    assert not other.acquire_lock("import:42", MINUTE)
    assert not mine.acquire_lock("import:42", MINUTE)  # threads of one holder exclude each other
    assert other.acquire_lock("import:43", MINUTE)
    assert mine.release_lock("import:42")
    assert not mine.release_lock("import:42")
    assert other.acquire_lock("import:42", MINUTE)


def test_a_lock_expires_and_its_former_holder_can_neither_extend_nor_release_it(
    engine: Engine, clock: MovedClock
) -> None:
    mine, other = engine.locks, engine.locks.held_by()
    assert mine.acquire_lock("k", MINUTE)
    clock.now += 40_000
    assert mine.extend_lock("k", MINUTE)
    clock.now += 59_000
    assert not other.acquire_lock("k", MINUTE)
    clock.now += 1_000
    assert mine.check_lock("k") is None
    assert not mine.extend_lock("k", MINUTE)
    assert other.acquire_lock("k", MINUTE)
    assert not mine.extend_lock("k", MINUTE)
    assert not mine.release_lock("k")
    held = mine.check_lock("k")
    assert held is not None
    assert held.holder == other.holder


def test_a_lock_says_what_it_is_held_for(engine: Engine, clock: MovedClock) -> None:
    meta = LockMetaData("default", "shop.Pay", "Order.pay", "0" * 32)
    assert engine.locks.acquire_lock("k", MINUTE, meta)
    held = engine.locks.check_lock("k")
    assert held is not None
    assert (held.key, held.meta, held.expires_at - held.acquired_at) == ("k", meta, MINUTE)
    assert held.acquired_at == clock()


def test_the_lock_of_a_server_ends_with_the_server(engine: Engine) -> None:
    server = server_of("5" * 32, "b" * 32, "here")
    with engine.database.write() as session:
        session.servers.register(server)
    theirs = engine.locks.held_by(server.uuid)
    assert theirs.acquire_lock("k", MINUTE)
    assert not engine.locks.acquire_lock("k", MINUTE)
    with engine.database.write() as session:
        session.servers.deregister(server.uuid)
    assert engine.locks.check_lock("k") is None
    assert engine.locks.acquire_lock("k", MINUTE)
    assert server.state == ServerState.RUNNING  # its process does not know: it is refused
    assert not theirs.extend_lock("k", MINUTE)


def test_a_lock_of_a_clock_that_was_set_back_can_be_taken(
    engine: Engine, clock: MovedClock
) -> None:
    clock.now += 3_600_000
    assert engine.locks.acquire_lock("k", MINUTE)
    clock.now += -3_600_000
    assert engine.locks.held_by().acquire_lock("k", MINUTE)


def test_several_locks_are_acquired_extended_and_released_in_one_statement(
    engine: Engine,
) -> None:
    mine, other = engine.locks, engine.locks.held_by()
    assert other.acquire_lock("b", MINUTE)
    assert mine.acquire_locks(dict.fromkeys("abc"), MINUTE) == {"a", "c"}
    assert mine.extend_locks(list("abc"), MINUTE) == {"a", "c"}
    assert mine.release_locks(list("abc")) == {"a", "c"}
    assert other.check_lock("b") is not None


def test_of_eight_threads_one_acquires_a_lock(engine: Engine) -> None:
    holders = [engine.locks.held_by() for _ in range(8)]
    got = in_threads([functools.partial(each.acquire_lock, "k", MINUTE) for each in holders])
    assert sorted(got) == [False] * 7 + [True]


def test_expired_locks_are_removed_a_day_later(engine: Engine, clock: MovedClock) -> None:
    engine.locks.acquire_locks(dict.fromkeys("abc"), MINUTE)
    clock.now += 86_000_000
    engine.locks.acquire_lock("d", MINUTE)
    assert engine.purger.remove_expired(1.0, now=True).rows == 0
    clock.now += 1_000_000
    assert engine.purger.remove_expired(1.0, now=True).rows == 3


@pytest.mark.parametrize(
    ("key", "duration", "message"),
    [
        ("", 1, "the key of a lock is a text of 1 to 255 characters"),
        ("x" * 256, 1, "the key of a lock is a text of 1 to 255 characters"),
        ("a\0b", 1, "no NUL among them"),
        ("\ud800", 1, "no lone surrogate"),
        (7, 1, "the key of a lock is a text"),
        ("k", 0, "the duration of a lock is a whole number of milliseconds"),
        ("k", True, "the duration of a lock is a whole number of milliseconds"),
        ("k", 86_400_001, "extend a lock that is held longer"),
    ],
)
def test_a_key_or_duration_that_no_lock_can_have_is_refused(
    engine: Engine, key: str, duration: int, message: str
) -> None:
    with pytest.raises(ValueRefused) as refused:
        engine.locks.acquire_lock(key, duration)
    assert message in str(refused.value)


def test_the_name_of_a_holder_has_a_limit(engine: Engine) -> None:
    with pytest.raises(ValueRefused, match="the holder of a lock has at most 32 characters"):
        engine.locks.held_by("x" * 33)
