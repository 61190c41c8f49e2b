"""The changes of events: on every path, in order, without gaps, for one run and for all."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event as sql_event

from flowengine import Cache, Limit, Retry, event_facet, foreach, workflow
from flowengine.engine import Engine, history
from flowengine.engine.event_changes import SCALE
from flowengine.errors import FeedDisabled, InvalidFilter, UnknownRun
from flowengine.evaluator.states import EVENT_CHANGES, EventState
from flowengine.sdk import EventChange
from flowengine.settings import Settings
from flowengine.testing import Flow
from tests.integration.engines import opened, watched

C, D, P, OK, ERROR = (
    EventState.CREATED,
    EventState.DISPATCHED,
    EventState.PROCESSING,
    EventState.COMPLETED,
    EventState.ERROR,
)
FAILS: list[str] = []


@event_facet(name="feed.work", retry=Retry(attempts=2, first_wait=4))
def work(n: int) -> int:
    if FAILS:
        raise ConnectionError(FAILS.pop())
    return n + 1


@event_facet(name="feed.limited", limit=[Limit("feed", 1)])
def limited(n: int) -> int:
    return n


@event_facet(name="feed.cached", cache=Cache("{n}", timedelta(hours=1)))
def cached(n: int) -> int:
    return n


@event_facet(name="feed.silent", timeout=5)
def silent(n: int) -> int:
    return n


@workflow(name="feed.quiet")
def quiet(n: int) -> int:
    return silent(n)


@event_facet(name="feed.delegates")
def delegates(n: int) -> int:
    return one(n)


@workflow(name="feed.parent")
def parent(n: int) -> int:
    return delegates(n)


@workflow(name="feed.one")
def one(n: int) -> int:
    return work(n)


@workflow(name="feed.wide")
def wide(ns: list[int]) -> list[int]:
    return foreach(ns, lambda n: work(n))


@workflow(name="feed.slow")
def slow(n: int) -> int:
    return limited(n)


@workflow(name="feed.again")
def again(n: int) -> int:
    return cached(n)


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    FAILS.clear()
    with Flow(store_url=database_url, settings=Settings(event_feed=True)) as flow:
        yield flow


def states(changes: Iterable[EventChange]) -> list[str]:
    return [change.state for change in changes]


def check(changes: Sequence[EventChange]) -> None:
    """Each change is one that the table allows, and the places grow."""
    assert [c.seq for c in changes] == sorted({c.seq for c in changes})
    last: dict[str, str] = {}
    for change in changes:
        before = last.get(change.event_id)
        assert change.state == C if before is None else change.state in EVENT_CHANGES[before]
        last[change.event_id] = change.state


def of(engine: Engine, run_id: str) -> list[EventChange]:
    """The changes of a run, alone and in the feed of all runs."""
    own = list(engine.events(run_id, after=0))
    check(own)
    shared = [change for change in engine.events(after=0) if change.run_id == run_id]
    assert [(c.event_id, c.state) for c in own] == [(c.event_id, c.state) for c in shared]
    last = {change.event_id: change.state for change in own}
    for event in engine.events(run_id):
        # Between two commits the row knows more than the feed.
        seen, now = last[event.id], event.state
        assert seen == now or now in (D, P), (seen, now)
    return own


# --- every path ---


def test_an_event_that_succeeds_is_created_dispatched_processed_and_completed(flow: Flow) -> None:
    run = flow.start(one, 1)
    assert states(of(flow.engine, run.id)) == [C, D]
    flow.settle()
    changes = of(flow.engine, run.id)
    assert states(changes) == [C, D, P, OK]
    assert {(c.event_type, c.path, c.run_id) for c in changes} == {
        ("feed.work", "one.work", run.id)
    }
    assert [c.try_number for c in changes] == [1, 1, 1, 1]


def test_a_failed_try_is_dispatched_again_and_the_last_one_ends_the_event(flow: Flow) -> None:
    FAILS.extend(["second", "first"])
    run = flow.start(one, 1)
    flow.settle()
    assert states(of(flow.engine, run.id)) == [C, D, P, D]
    flow.clock.advance(seconds=4)
    flow.settle()
    changes = of(flow.engine, run.id)
    assert states(changes) == [C, D, P, D, P, ERROR]
    assert (changes[-1].try_number, changes[-1].error_type) == (2, "ConnectionError")


def test_a_lost_worker_shows_as_a_second_try(flow: Flow) -> None:
    run = flow.start(one, 1)
    lost = flow.worker("lost")
    lost.claim(run, "work")
    assert states(flow.engine.events(run.id, after=0)) == [C, D]
    (event,) = flow.engine.events(run.id)
    assert event.state == P  # at once, by the row
    lost.die()
    flow.watchdog()
    flow.settle()
    changes = of(flow.engine, run.id)
    assert states(changes) == [C, D, P, D, P, OK]
    assert changes[-1].losses == 1


def test_a_try_that_was_silent_for_too_long_ends(flow: Flow) -> None:
    run = flow.start(quiet, 1)
    flow.worker("silent").claim(run, "silent")
    flow.clock.advance(seconds=6)
    flow.watchdog()
    assert states(of(flow.engine, run.id)) == [C, D, P, ERROR]


def test_the_event_of_a_step_that_a_child_run_continues_ends_with_it(flow: Flow) -> None:
    run = flow.start(parent, 1)
    flow.settle()
    assert run.result(timeout=0) == 2
    assert states(of(flow.engine, run.id)) == [C, D, P, OK]


def test_an_answer_from_outside_completes_the_event_and_a_duplicate_is_nothing(flow: Flow) -> None:
    run = flow.start(one, 1)
    (event,) = flow.engine.events(run.id)
    flow.engine.continue_step(event.step_id, 5)
    flow.engine.continue_step(event.step_id, 6)
    assert states(of(flow.engine, run.id)) == [C, D, OK]
    assert run.result(timeout=0) == 5


def test_a_failure_from_outside_ends_the_event_as_an_error(flow: Flow) -> None:
    run = flow.start(one, 1)
    held = flow.worker("held")
    task = held.claim(run, "work")
    flow.engine.fail_step(task.step_id, "no")
    assert states(of(flow.engine, run.id)) == [C, D, P, ERROR]


def test_a_cancelled_event_ends_as_an_error(flow: Flow) -> None:
    run = flow.start(wide, [1, 2, 3])
    held = flow.worker("held")
    held.claim_next()
    run.cancel()
    changes = of(flow.engine, run.id)
    by_event = defaultdict(list)
    for change in changes:
        by_event[change.event_id].append(change.state)
    assert sorted(by_event.values()) == [[C, D, ERROR], [C, D, ERROR], [C, D, P, ERROR]]


def test_a_step_that_is_completed_or_skipped_by_hand_ends_its_event(flow: Flow) -> None:
    completed, skipped = flow.start(one, 1), flow.start(one, 2)
    completed.complete("one.work", 7)
    skipped.skip("one.work")
    assert states(of(flow.engine, completed.id)) == [C, D, OK]
    assert states(of(flow.engine, skipped.id)) == [C, D, ERROR]


def test_a_retried_step_has_an_event_of_its_own(flow: Flow) -> None:
    FAILS.extend(["second", "first"])
    run = flow.start(one, 1)
    flow.settle()
    flow.clock.advance(seconds=4)
    flow.settle()
    run.retry()
    flow.settle()
    changes = of(flow.engine, run.id)
    assert states(changes) == [C, D, P, D, P, ERROR, C, D, P, OK]
    assert len({change.event_id for change in changes}) == 2


def test_a_retry_of_a_waiting_step_ends_its_first_event(flow: Flow) -> None:
    run = flow.start(one, 1)
    run.retry(from_step="one.work")
    flow.settle()
    assert states(of(flow.engine, run.id)) == [C, D, ERROR, C, D, P, OK]


def test_a_cached_result_completes_the_event_without_a_try(flow: Flow) -> None:
    for _ in range(2):
        run = flow.start(again, 1)
        flow.settle()
    changes = of(flow.engine, run.id)
    assert states(changes) == [C, OK]
    assert [change.try_number for change in changes] == [0, 0]


def test_an_event_that_waits_for_a_limit_is_dispatched_when_it_is_admitted(flow: Flow) -> None:
    first, second = flow.start(slow, 1), flow.start(slow, 2)
    assert states(flow.engine.events(second.id, after=0)) == [C]
    (event,) = flow.engine.events(second.id)
    assert event.state == C
    flow.settle()
    for run in (first, second):
        assert states(of(flow.engine, run.id)) == [C, D, P, OK]


def test_the_events_of_a_wide_loop_are_all_there(flow: Flow) -> None:
    run = flow.start(wide, list(range(120)))
    flow.settle()
    changes = of(flow.engine, run.id)
    assert len(changes) == 4 * 120
    assert {change.state for change in changes[-120:]} == {P, OK}


def test_a_commit_with_more_transitions_than_its_entry_lists_loses_no_event(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_LISTED", 7)
    run = flow.start(wide, list(range(30)))
    begun = states(of(flow.engine, run.id))
    assert sorted(begun) == sorted([C, D] * 30)
    flow.settle()
    changes = of(flow.engine, run.id)
    assert sorted(states(changes)) == sorted([C, D, P, OK] * 30)
    assert sum(entry.omitted for entry in flow.engine.history(run.id)) > 0


# --- order and places ---


def test_a_feed_goes_on_behind_any_place(flow: Flow) -> None:
    runs = [flow.start(wide, [1, 2]) for _ in range(3)]
    flow.settle()
    for events in (
        lambda after: flow.engine.events(after=after),
        lambda after: flow.engine.events(runs[0].id, after=after),
    ):
        everything = list(events(0))
        check(everything)
        for place, change in enumerate(everything):
            assert list(events(change.seq)) == everything[place + 1 :]
        feed = events(0)
        for _ in zip(range(3), feed, strict=False):
            pass
        assert list(events(feed.after)) == everything[3:]
    assert next(c.seq // SCALE for c in flow.engine.events(runs[0].id, after=0)) == 1


def test_a_reader_numbers_no_more_than_its_page_needs(flow: Flow) -> None:
    for n in range(600):
        flow.start(one, n)
    assert next(iter(flow.engine.events(after=0))).seq // SCALE == 1
    with flow.engine.database.read() as session:
        assert session.feed.is_marked()  # 500 are numbered in a transaction
    assert len(list(flow.engine.events(after=0))) == 2 * 600
    with flow.engine.database.read() as session:
        assert not session.feed.is_marked()


def test_places_are_never_given_twice_also_after_a_purge(flow: Flow) -> None:
    run = flow.start(one, 1)
    flow.settle()
    last = list(flow.engine.events(after=0))[-1].seq
    flow.clock.advance(hours=48)
    flow.engine.purge(older_than=timedelta(hours=1))
    with pytest.raises(UnknownRun):
        list(flow.engine.events(run.id, after=0))
    assert list(flow.engine.events(after=0)) == []
    later = flow.start(one, 2)
    (created, *_) = flow.engine.events(after=last)
    assert created.run_id == later.id
    assert created.seq > last


def test_commits_of_a_process_without_the_setting_are_numbered_with_the_next(
    database_url: str,
) -> None:
    with Flow(store_url=database_url) as without:
        run = without.start(one, 1)
        with pytest.raises(FeedDisabled, match="FLOWENGINE_EVENT_FEED=on"):
            list(without.engine.events(after=0))
        assert states(without.engine.events(run.id, after=0)) == [C, D]
        settings = Settings(event_feed=True)
        with opened(database_url, clock=without.clock, settings=settings) as engine:
            assert list(engine.events(after=0)) == []
            (event,) = engine.events(run.id)
            engine.continue_step(event.step_id, 3)
            assert states(engine.events(after=0)) == [C, D, OK]


def test_a_tenant_sees_the_events_of_its_own_runs(flow: Flow) -> None:
    ours, theirs = (
        flow.engine.start(one.program(), "feed.one", {"n": 1}, tenant=tenant)
        for tenant in ("ours", "theirs")
    )
    assert {c.run_id for c in flow.engine.events(after=0, tenant="ours")} == {ours.id}
    assert {c.run_id for c in flow.engine.events(after=0)} == {ours.id, theirs.id}
    with pytest.raises(UnknownRun):
        list(flow.engine.events(theirs.id, after=0, tenant="ours"))


@pytest.mark.parametrize("after", [-1, True, "0", 2**63])
def test_a_place_that_is_none_is_refused(flow: Flow, after: object) -> None:
    with pytest.raises(InvalidFilter, match="after"):
        flow.engine.events(after=after)  # type: ignore[call-overload]
    with pytest.raises(InvalidFilter, match="0: from the beginning"):
        flow.engine.events(follow=True)  # type: ignore[call-overload]


# --- following ---


def test_a_follower_gets_each_change_and_ends_with_its_run(database_url: str) -> None:
    settings = Settings(event_feed=True)
    with opened(database_url, settings=settings) as engine:
        run = engine.start(one.program(), "feed.one", {"n": 1})
        seen: list[str] = []
        begun = threading.Event()

        def follow() -> None:
            for change in engine.events(run.id, after=0, follow=True, timeout=20):
                seen.append(change.state)
                begun.set()

        follower = threading.Thread(target=follow)
        follower.start()
        assert begun.wait(20)
        (event,) = engine.events(run.id)
        engine.continue_step(event.step_id, 3)
        follower.join(20)
        assert not follower.is_alive()
        assert seen == [C, D, OK]


def test_an_asynchronous_follower_gets_the_same(database_url: str) -> None:
    settings = Settings(event_feed=True)

    async def followed(engine: Engine, run_id: str) -> list[str]:
        seen = []
        async for change in engine.events(after=0, follow=True, timeout=20):
            seen.append(change.state)
            if seen == [C, D]:
                await asyncio.to_thread(engine.continue_step, change.step_id, 3)
            if change.state == OK:
                break
        return seen

    with opened(database_url, settings=settings) as engine:
        run = engine.start(one.program(), "feed.one", {"n": 1})
        assert asyncio.run(followed(engine, run.id)) == [C, D, OK]


def test_a_follower_ends_when_its_time_is_over(flow: Flow) -> None:
    flow.start(one, 1)
    assert states(flow.engine.events(after=0, follow=True, timeout=0.01)) == [C, D]


def test_a_commit_notifies_followers_of_other_processes(on_postgres: Engine) -> None:
    url = on_postgres.database.url.render_as_string(hide_password=False)
    settings = Settings(event_feed=True)
    with opened(url, settings=settings) as reading, opened(url, settings=settings) as writing:
        found: list[EventChange] = []
        woken = threading.Event()
        with reading.queries.feed.woken(woken.set):
            assert woken.wait(20)  # it listens
            assert reading.queries.feed.is_notified
            woken.clear()
            writing.start(one.program(), "feed.one", {"n": 1})
            assert woken.wait(20)
        found += reading.events(after=0)
        assert states(found) == [C, D]


def test_no_change_is_missed_among_commits_that_end_in_any_order(database_url: str) -> None:
    """Writers commit in threads while followers read, one of which ends and is resumed."""
    settings = Settings(event_feed=True)
    writers, each = 4, 12
    with opened(database_url, settings=settings) as engine:
        program = one.program()
        done = threading.Event()

        def write() -> None:
            for n in range(each):
                run = engine.start(program, "feed.one", {"n": n})
                (event,) = engine.events(run.id)
                engine.continue_step(event.step_id, n)

        threads = [threading.Thread(target=write) for _ in range(writers)]
        steady: list[EventChange] = []
        resumed: list[EventChange] = []

        def follow() -> None:
            for change in engine.events(after=0, follow=True, timeout=60):
                steady.append(change)
                if len(steady) == 3 * writers * each:
                    done.set()
                    return

        def stop_and_go() -> None:
            place = 0
            while len(resumed) < 3 * writers * each:
                for change in engine.events(after=place, follow=True, timeout=60):
                    resumed.append(change)
                    place = change.seq
                    if len(resumed) % 7 == 0 or len(resumed) == 3 * writers * each:
                        break  # a new one takes its place

        readers = [threading.Thread(target=follow), threading.Thread(target=stop_and_go)]
        for thread in (*readers, *threads):
            thread.start()
        for thread in (*threads, *readers):
            thread.join(60)
            assert not thread.is_alive()
        assert done.is_set()
        assert steady == resumed == list(engine.events(after=0))
        check(steady)
        assert [c.seq // SCALE for c in steady if c.state == C or c.state == OK] == list(
            range(1, 2 * writers * each + 1)
        )


def test_a_transaction_that_commits_late_is_not_missed(on_postgres: Engine) -> None:
    url = on_postgres.database.url.render_as_string(hide_password=False)
    with opened(url, settings=Settings(event_feed=True)) as engine:
        engine.start(one.program(), "feed.one", {"n": 0})  # the program is stored
        (*_, first) = engine.events(after=0)
        with engine.database.engine.connect() as connection, connection.begin():
            late = engine.start(one.program(), "feed.one", {"n": 1}, connection=connection)
            early = engine.start(one.program(), "feed.one", {"n": 2})
            seen = list(engine.events(after=first.seq))
            assert {change.run_id for change in seen} == {early.id}
        rest = list(engine.events(after=seen[-1].seq))
        assert {change.run_id for change in rest} == {late.id}
        assert states(rest) == [C, D]


def test_a_purge_beside_the_numbering_leaves_no_place_behind(on_postgres: Engine) -> None:
    """The purge begins when the numbering has written places, and has not committed them."""
    url = on_postgres.database.url.render_as_string(hide_password=False)
    now = [1_800_000_000_000]
    settings = Settings(event_feed=True)
    with opened(url, settings=settings, clock=lambda: now[0]) as engine:
        run = engine.start(one.program(), "feed.one", {"n": 1})
        (event,) = engine.events(run.id)
        engine.continue_step(event.step_id, 2)
        now[0] += 3_600_000
        old = {"older_than": timedelta(minutes=1)}
        purge = threading.Thread(target=engine.purge, kwargs=old)
        with engine.database.write() as session:
            execute = session.rows

            def rows(text: str, *values: Any) -> Any:
                found = execute(text, *values)
                if text.startswith("INSERT INTO flowengine_feed"):
                    purge.start()
                    while purge.is_alive() and not waiting(on_postgres):
                        purge.join(0.02)
                return found

            session.rows = rows
            session.feed.number()
        purge.join(60)
        assert not purge.is_alive()
        assert list(engine.events(after=0)) == []
        later = engine.start(one.program(), "feed.one", {"n": 2})
        created, dispatched = engine.events(after=0)
        assert (created.run_id, dispatched.run_id) == (later.id, later.id)
        assert created.seq // SCALE == 3  # behind the places of the removed run
    with on_postgres.database.read() as session:
        left = session.rows("SELECT run_id FROM flowengine_feed")
    assert left == [(later.id,)]


def waiting(engine: Engine) -> bool:
    """Whether a statement waits for a lock."""
    query = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() "
    with engine.database.read() as session:
        return bool(session.rows(query + "AND wait_event_type = 'Lock'"))


_FOLLOWER = """
import sys
from flowengine.engine import Engine
from flowengine.settings import Settings
from flowengine.store import Database

engine = Engine(Database(sys.argv[1]), settings=Settings(event_feed=True))
for change in engine.events(after=int(sys.argv[2]), follow=True):
    print(change.seq, change.state, flush=True)
"""


def test_a_follower_that_is_killed_goes_on_behind_its_last_change(database_url: str) -> None:
    seen: list[tuple[int, str]] = []
    with opened(database_url, settings=Settings(event_feed=True)) as engine:

        def followed(changes: int) -> None:
            """Read that many changes in another process, which is killed then."""
            place = str(seen[-1][0] if seen else 0)
            command = [sys.executable, "-c", _FOLLOWER, database_url, place]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                for _ in range(changes):
                    seq, state = process.stdout.readline().split()
                    seen.append((int(seq), state))
                process.kill()

        for n in range(2):
            run = engine.start(one.program(), "feed.one", {"n": n})
        followed(3)  # in the middle of a commit
        (event,) = engine.events(run.id)
        engine.continue_step(event.step_id, 1)
        followed(2)
        assert seen == [(change.seq, change.state) for change in engine.events(after=0)]
        assert [state for _, state in seen] == [C, D, C, D, OK]


# --- cost ---


def test_a_page_costs_the_same_among_many_runs(flow: Flow) -> None:
    def statements() -> int:
        count = 0

        def notice(*_: object) -> None:
            nonlocal count
            count += 1

        first = next(iter(flow.engine.events(after=0))).seq  # all are numbered
        sql_event.listen(flow.engine.database.engine, "before_cursor_execute", notice)
        try:
            with watched(flow.engine, notice):
                flow.engine.queries.feed.page(None, first, None)
        finally:
            sql_event.remove(flow.engine.database.engine, "before_cursor_execute", notice)
        return count

    flow.start(one, 1)
    few = statements()
    for n in range(150):
        flow.start(one, n)
    assert statements() <= few <= 6  # a full page does not look for more
