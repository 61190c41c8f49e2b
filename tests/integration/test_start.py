"""Starting runs and waiting for their ends; what values survive on the way."""

from __future__ import annotations

import asyncio
import json
import math
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from flowengine.dispatch import NullNotifier
from flowengine.engine import Engine, after_commit
from flowengine.engine.staging import MIN_GROUP_SIZE
from flowengine.errors import (
    InvalidInputs,
    NotJson,
    RunFailed,
    TooLarge,
    UnknownRun,
    UnknownWorkflow,
)
from flowengine.evaluator import RunState, StepState
from flowengine.evaluator.triggers import Failed, Succeeded
from flowengine.program.nodes import (
    Binary,
    Block,
    EventOptions,
    FacetDeclaration,
    FacetKind,
    Field,
    ForeachClause,
    Literal,
    RetryPolicy,
    StepRef,
)
from flowengine.settings import Settings
from tests.integration.engines import (
    X,
    call,
    chain,
    claim,
    counts,
    dump,
    dump_of,
    event_facet,
    one,
    opened,
    program,
    side_by_side,
    watched,
    workflow,
)
from tests.integration.threads import TIMEOUT, Ready, in_processes, in_threads, wait_until
from tests.servers import PostgresServer

#: Rows of a new database: the number of the oldest code that its schema serves.
NEW = {"counter": 1}


class WakeupRecorder(NullNotifier):
    """Records wake-ups, and what a worker would find at that time."""

    def __init__(self) -> None:
        self.wakeups: Counter[str] = Counter()
        self.look: Callable[[], object] = lambda: None
        self.seen: list[object] = []

    def notify(self, due: Mapping[str, int]) -> None:
        self.wakeups.update(due)
        self.seen.append(self.look())


@pytest.fixture
def notifier() -> WakeupRecorder:
    return WakeupRecorder()


@pytest.fixture
def engine(database_url: str, notifier: WakeupRecorder) -> Iterator[Engine]:
    with opened(database_url, notifier=notifier) as engine:
        yield engine


def finish(engine: Engine, value: Any = 1) -> None:
    assert engine.report(claim(engine), Succeeded({"y": value}))


# --- once ---


def test_a_second_start_with_the_same_key_returns_the_first_run(engine: Engine) -> None:
    first = engine.start(one(), "Flow", {"x": 1}, key="order 7")
    before = dump(engine)
    assert engine.start(one(), "Flow", {"x": 2}, key="order 7").id == first.id
    assert dump(engine) == before
    finish(engine)
    assert engine.start(one(), "Flow", {"x": 3}, key="order 7").result() == {"y": 1}
    assert engine.start(one(), "Flow", {"x": 3}, key="order 8").id != first.id
    assert engine.start(one(), "Flow", {"x": 3}).id != engine.start(one(), "Flow", {"x": 3}).id


def test_a_key_belongs_to_a_workflow_and_a_tenant(engine: Engine) -> None:
    flows = program(
        event_facet("Work"),
        workflow([call("a", "Work", x=X)], {}, name="One"),
        workflow([call("a", "Work", x=X)], {}, name="Two"),
    )
    started = {
        engine.start(flows, name, {}, key="same", tenant=tenant).id
        for name in ("One", "Two", "t.One")
        for tenant in ("", "other")
    }
    assert len(started) == 4


def test_one_of_many_concurrent_starts_with_one_key_makes_a_run(engine: Engine) -> None:
    def start() -> str:
        return engine.start(one(), "Flow", {"x": 1}, key="once").id

    found = in_threads([start] * 8)
    assert len(set(found)) == 1
    rows = counts(dump(engine))
    assert (rows["run"], rows["task"], rows["program"], rows["history"]) == (1, 1, 1, 1)


def start_in_process(ready: Ready, url: str) -> str:
    with opened(url) as engine:
        ready()
        return engine.start(one(), "Flow", {"x": 1}, key="once").id


def test_one_of_two_processes_that_start_with_one_key_makes_a_run(
    engine: Engine, database_url: str
) -> None:
    found = in_processes(start_in_process, [(database_url,)] * 2)
    assert len(set(found)) == 1
    assert counts(dump(engine))["run"] == 1


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"key": ""}, "the key must have 1 to 255 characters"),
        ({"key": "k" * 256}, "the key must have 1 to 255 characters"),
        ({"tenant": "t" * 65}, "the tenant must have 64 characters at most"),
        ({"tenant": "a\0b"}, "no NUL among them"),
        ({"priority": 2**40}, "the priority must be between -1,000,000,000 and 1,000,000,000"),
    ],
)
def test_options_that_no_database_can_store_are_refused(
    engine: Engine, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidInputs, match=problem):
        engine.start(one(), "Flow", {}, **options)
    assert counts(dump(engine)) == NEW


# --- in the caller's own transaction ---


@pytest.fixture
def theirs(engine: Engine, database_url: str) -> Iterator[Callable[[], Connection]]:
    """Connections of the caller's own, to the same database."""
    own = create_engine(database_url, poolclass=NullPool)
    with own.begin() as connection:
        connection.execute(text("CREATE TABLE orders (number INTEGER)"))
    yield own.connect
    own.dispose()


LARGE = ["a large value"] * 2_000


def order(connection: Connection, engine: Engine) -> Any:
    connection.execute(text("INSERT INTO orders VALUES (7)"))
    return engine.start(side_by_side("a", "b"), "Flow", {"x": LARGE}, connection=connection)


def test_a_run_started_in_their_transaction_exists_when_it_commits(
    engine: Engine, theirs: Callable[[], Connection]
) -> None:
    with theirs() as connection, connection.begin():
        run = order(connection, engine)
        with pytest.raises(UnknownRun):
            run.info()
    rows = counts(dump(engine))
    assert (rows["run"], rows["program"], rows["task"], rows["payload"]) == (1, 1, 2, 1)
    finish(engine, 1)
    finish(engine, 2)
    assert run.result() == {"a": 1, "b": 2}


def test_a_run_started_in_their_transaction_never_was_when_it_rolls_back(
    engine: Engine, theirs: Callable[[], Connection], notifier: WakeupRecorder
) -> None:
    with theirs() as connection:
        with connection.begin() as transaction:
            run = order(connection, engine)
            assert counts(dump_of(connection))["task"] == 2
            transaction.rollback()
        with connection.begin():
            assert connection.scalar(text("SELECT count(*) FROM orders")) == 0
    assert counts(dump(engine)) == NEW
    assert notifier.wakeups == {}
    with pytest.raises(UnknownRun):
        run.result(timeout=0)
    # And the same program can be started after that, by this process that has it in memory.
    engine.start(side_by_side("a", "b"), "Flow", {"x": LARGE})
    finish(engine)


def test_wakeups_of_a_run_in_their_transaction_are_sent_after_its_commit(
    engine: Engine, theirs: Callable[[], Connection], notifier: WakeupRecorder
) -> None:
    notifier.look = lambda: len(dump(engine)["flowengine_task"])
    with theirs() as connection, connection.begin():
        order(connection, engine)
        assert notifier.wakeups == {}
    assert notifier.wakeups == {"default": 2}
    assert notifier.seen == [2], "a wake-up before the commit finds nothing"


def test_wakeups_of_a_fan_out_in_their_transaction_are_sent_too(
    engine: Engine, theirs: Callable[[], Connection], notifier: WakeupRecorder
) -> None:
    wide = side_by_side(*(f"s{number}" for number in range(MIN_GROUP_SIZE)))
    with theirs() as connection, connection.begin():
        engine.start(wide, "Flow", {}, connection=connection)
    assert notifier.wakeups == {"default": MIN_GROUP_SIZE}


def test_a_run_can_be_started_in_the_transaction_of_a_session(
    engine: Engine, theirs: Callable[[], Connection], notifier: WakeupRecorder
) -> None:
    notifier.look = lambda: len(dump(engine)["flowengine_task"])
    with theirs() as connection, Session(bind=connection.engine) as session:
        order(session.connection(), engine)
        session.rollback()
        assert counts(dump(engine)) == NEW
        run = order(session.connection(), engine)
        session.commit()
    assert run.info().open_steps == 2
    assert (notifier.wakeups, notifier.seen) == ({"default": 2}, [2])


def test_a_key_holds_in_their_transaction_too(
    engine: Engine, theirs: Callable[[], Connection]
) -> None:
    first = engine.start(one(), "Flow", {}, key="once")
    with theirs() as connection, connection.begin():
        assert engine.start(one(), "Flow", {}, key="once", connection=connection).id == first.id
        inside = engine.start(one(), "Flow", {}, key="new", connection=connection)
        again = engine.start(one(), "Flow", {}, key="new", connection=connection)
        assert inside.id == again.id
    assert counts(dump(engine))["run"] == 2


# --- refused starts ---


def test_a_start_that_is_refused_writes_nothing_at_all(engine: Engine) -> None:
    with pytest.raises(UnknownWorkflow, match=r"it declares: t\.Flow"):
        engine.start(one(), "Flo", {})
    with pytest.raises(InvalidInputs, match="unknown input 'z'"):
        engine.start(one(), "Flow", {"z": 1})
    with pytest.raises(NotJson):
        engine.start(one(), "Flow", {"x": object()})
    with pytest.raises(TooLarge):
        engine.start(one(), "Flow", {"x": "x" * engine.settings.max_value_bytes})
    assert counts(dump(engine)) == NEW


# --- waiting ---


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters do not poll: they must be notified."""
    monkeypatch.setattr(after_commit, "_FIRST_POLL", 10 * TIMEOUT)
    monkeypatch.setattr(after_commit, "_LAST_POLL", 10 * TIMEOUT)


def somebody_waits(engine: Engine, run: str) -> None:
    wait_until(lambda: engine.completions._waiters.get(run), "somebody waits for the run")


@pytest.mark.usefixtures("no_polling")
def test_a_waiter_is_woken_when_another_thread_ends_the_run(engine: Engine) -> None:
    run = engine.start(one(), "Flow", {})
    with ThreadPoolExecutor(2) as pool:
        results = [pool.submit(run.result, TIMEOUT) for _ in range(2)]
        somebody_waits(engine, run.id)
        finish(engine, "done")
        assert [waiting.result(TIMEOUT) for waiting in results] == [{"y": "done"}] * 2
    assert engine.completions._waiters == {}


@pytest.mark.usefixtures("no_polling")
def test_a_waiter_is_woken_when_the_run_fails(engine: Engine) -> None:
    run = engine.start(one(), "Flow", {})
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run.result, TIMEOUT)
        somebody_waits(engine, run.id)
        assert engine.report(claim(engine), Failed({"type": "Error", "message": "no"}))
        with pytest.raises(RunFailed):
            waiting.result(TIMEOUT)


def finish_in_process(ready: Ready, url: str) -> None:
    with opened(url) as engine:
        ready()
        finish(engine, "done elsewhere")


@pytest.mark.usefixtures("no_polling")
def test_postgres_notifies_a_waiter_when_another_process_ends_the_run(
    postgres: PostgresServer,
) -> None:
    url = postgres.new_database()
    with opened(url) as engine, ThreadPoolExecutor(1) as pool:
        run = engine.start(one(), "Flow", {})

        def listens() -> bool:
            with engine.database.read() as connection:
                found = connection.execute(
                    text(
                        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' "
                        "AND datname = current_database() AND state = 'idle'"
                    )
                )
                return bool(found.scalar_one())

        waiting = pool.submit(run.result, TIMEOUT)
        wait_until(listens, "the waiter listens")
        in_processes(finish_in_process, [(url,)])
        assert waiting.result(TIMEOUT) == {"y": "done elsewhere"}
    postgres.drop_database(url)


def test_an_engine_without_a_server_has_no_servers(engine: Engine) -> None:
    assert engine.servers() == []


def test_an_engine_that_has_waited_for_a_run_may_be_closed_twice(database_url: str) -> None:
    with opened(database_url) as engine:
        with pytest.raises(TimeoutError):
            engine.start(one(), "Flow", {}).result(0.01)
        engine.close()


def test_a_waiter_finds_the_end_of_a_run_that_another_process_ended(
    engine: Engine, database_url: str
) -> None:
    run = engine.start(one(), "Flow", {})
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run.result, TIMEOUT)
        in_processes(finish_in_process, [(database_url,)])
        assert waiting.result(TIMEOUT) == {"y": "done elsewhere"}


def test_a_result_that_takes_too_long_says_what_is_outstanding(engine: Engine) -> None:
    run = engine.start(side_by_side("a", "b", "c"), "Flow", {})
    with pytest.raises(TimeoutError, match=rf"{run.id} has not ended after 0\.01 s: 3 .*outstand"):
        run.result(timeout=0.01)
    finish(engine)
    with pytest.raises(TimeoutError, match=r"2 .*outstanding"):
        run.outputs(timeout=0)


@pytest.mark.usefixtures("no_polling")
def test_starting_and_waiting_do_not_block_an_event_loop(engine: Engine) -> None:
    async def both() -> Any:
        run = await engine.astart(one(), "Flow", {"x": 5}, key="async")
        waiting = asyncio.create_task(run.aresult(TIMEOUT))
        while not engine.completions._waiters:
            await asyncio.sleep(0)  # the loop goes round while the waiter waits
        await asyncio.to_thread(finish, engine, 6)
        return await waiting

    assert asyncio.run(both()) == {"y": 6}


def test_a_run_is_read_from_an_event_loop(engine: Engine) -> None:
    async def read() -> tuple[Any, ...]:
        run = await engine.astart(one(), "Flow", {"x": 5})
        again = await engine.arun(run.id)
        await asyncio.to_thread(finish, engine, 6)
        info, steps = await again.ainfo(), await again.asteps()
        return info.state, {step.state for step in steps}, await again.aoutputs(TIMEOUT)

    assert asyncio.run(read()) == (RunState.COMPLETED, {StepState.COMPLETE}, {"y": 6})


def test_waiting_in_an_event_loop_ends_in_time_and_with_the_runs_error(engine: Engine) -> None:
    async def wait(timeout: float) -> Any:
        return await engine.run(run).aresult(timeout)

    run = engine.start(one(), "Flow", {}).id
    with pytest.raises(TimeoutError, match=r"1 .*outstanding"):
        asyncio.run(wait(0.01))
    assert engine.report(claim(engine), Failed({"type": "Error", "message": "no"}))
    with pytest.raises(RunFailed, match=r"Flow\.a: Error: no"):
        asyncio.run(wait(0))


def test_a_waiter_whose_event_loop_is_closed_does_not_fail_the_notification(engine: Engine) -> None:
    run = engine.start(one(), "Flow", {})

    async def give_up() -> None:
        waiting = asyncio.create_task(run.aresult())
        while not engine.completions._waiters:
            await asyncio.sleep(0)
        # As if the waiters were notified at the moment at which the loop closes.
        left.extend(engine.completions._waiters[run.id])
        waiting.cancel()

    left: list[Callable[[], object]] = []
    asyncio.run(give_up())
    engine.completions._waiters[run.id].update(left)
    finish(engine)
    assert run.state == RunState.COMPLETED


# --- failing ---


def test_a_failed_run_names_its_step_and_its_error(engine: Engine) -> None:
    run = engine.start(chain("a", "b"), "Flow", {})
    finish(engine)
    assert engine.report(claim(engine), Failed({"type": "IOError", "message": "disk \0 full"}))
    with pytest.raises(RunFailed) as caught:
        run.result()
    failed = caught.value
    assert (failed.run_id, failed.path) == (run.id, "Flow.b")
    assert (failed.error_type, failed.message) == ("IOError", "disk \0 full")
    assert str(failed).startswith(f"run {run.id} failed at Flow.b: IOError: disk")


def test_the_error_of_a_failed_run_survives_pickling_and_celery() -> None:
    failed = RunFailed("r1", "Flow.b", "IOError", "disk full")
    app = Celery(backend="cache+memory://", set_as_current=False)
    sent = json.loads(json.dumps(app.backend.prepare_exception(failed, serializer="json")))
    for copy in (
        pickle.loads(pickle.dumps(failed)),
        app.backend.exception_to_python(sent),
        type(failed)(*failed.args),
    ):
        assert type(copy) is RunFailed
        assert vars(copy) == vars(failed)
        assert str(copy) == str(failed)


# --- values ---


def test_a_large_value_passed_through_steps_is_stored_once(engine: Engine) -> None:
    run = engine.start(chain("a", "b", "c"), "Flow", {"x": LARGE})
    for _ in range(3):
        task = claim(engine)
        assert task.data == {"x": LARGE}
        assert engine.report(task, Succeeded({"y": task.data["x"]}))
    assert run.result() == {"y": LARGE}
    found = dump(engine)
    (body,) = found.pop("flowengine_payload")
    assert json.loads(body[1]) == LARGE
    program_text = found.pop("flowengine_program")
    assert len(program_text) == 1
    assert max(len(str(cell)) for rows in found.values() for row in rows for cell in row) < 8_192


def test_large_values_are_written_in_one_order_so_that_writers_do_not_deadlock(
    engine: Engine,
) -> None:
    orders: list[list[str]] = []

    def note(sql: str, given: Any) -> None:
        sections = [given]  # of SQLite a list of rows, of PostgreSQL several as JSON
        if any(isinstance(value, str) and value.startswith("[{") for value in given):
            sections = [json.loads(section) for section in given]
        for rows in sections:
            if sql.startswith("INSERT OR IGNORE INTO flowengine_payload"):
                orders.append([row[0] for row in rows])
            elif isinstance(rows, list) and isinstance(rows[0], dict) and "body" in rows[0]:
                orders.append([row["hash"] for row in rows])

    values = {f"v{i}": f"{i}" * 10_000 for i in range(10)}
    for names in (list(values), list(reversed(values))):
        engine.start(one(), "Flow", {})
        with watched(engine, note):
            large = {name: values[name] for name in names}
            assert engine.report(claim(engine), Succeeded({"y": 1, **large}, is_from_code=True))
    assert len(orders) == 2
    assert orders[0] == orders[1] == sorted(orders[0])


def test_a_value_above_the_limit_is_refused_as_an_input_with_the_cure(database_url: str) -> None:
    with opened(database_url, settings=Settings(max_value_bytes=10_000)) as engine:
        engine.start(one(), "Flow", {"x": "x" * 9_998})
        before = dump(engine)
        with pytest.raises(TooLarge) as caught:
            engine.start(one(), "Flow", {"x": "x" * 9_999})
        assert dump(engine) == before
    assert str(caught.value) == (
        "input 'x' of t.Flow takes 10,001 bytes as JSON, the limit is 10,000: put the data in a "
        "file or an object store and pass its address, or raise FLOWENGINE_MAX_VALUE_BYTES"
    )


RETRIED = EventOptions(retry=RetryPolicy(attempts=3, first_wait=0))


@pytest.mark.parametrize("way", ["report", "record"])
def test_a_result_above_the_limit_fails_its_step_which_is_not_retried(
    database_url: str, way: str
) -> None:
    with opened(database_url, settings=Settings(max_value_bytes=10_000)) as engine:
        run = engine.start(one(RETRIED), "Flow", {})
        assert getattr(engine, way)(claim(engine), Succeeded({"y": "x" * 9_999}))
        engine.advance(run.id)
        with pytest.raises(RunFailed, match=r"'y' returned by t\.Work takes 10,001.*address") as e:
            run.result(timeout=0)
        assert (e.value.path, e.value.error_type) == ("Flow.a", "TooLarge")
        assert len(engine.tasks(run.id)) == 1
        assert counts(dump(engine)).get("payload") is None


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


NOT_JSON = {
    "a set": ({1, 2}, "is of type set"),
    "an object": (object(), "is of type object"),
    "bytes inside": ({"a": [1, b"x"]}, r"\['a'\]\[1\] is of type bytes"),
    "not a number": (math.nan, "no form for"),
    "infinity inside": ([1.0, -math.inf], r"\[1\] is of type number that JSON has no form for"),
    "a number as key": ({"a": {1: 2}}, r"\['a'\], key 1 is of type int"),
    "nothing as key": ({None: 2}, "key None is of type NoneType"),
    "a tuple as key": ([{(1, 2): 3}], r"\[0\], key \(1, 2\) is of type tuple"),
    "nested too deeply": (nested(300), "nested too deeply"),
    "nested without end": (nested(100_000), "nested too deeply"),
}


def test_a_result_that_json_has_no_form_for_fails_its_step_which_is_not_retried(
    engine: Engine,
) -> None:
    for value, why in NOT_JSON.values():
        run = engine.start(one(RETRIED), "Flow", {})
        assert engine.report(claim(engine), Succeeded({"y": value}))
        with pytest.raises(RunFailed, match=why) as caught:
            run.result(timeout=0)
        assert (caught.value.path, caught.value.error_type) == ("Flow.a", "NotJson")
        assert "'y' returned by t.Work is not JSON" in caught.value.message
        assert len(engine.tasks(run.id)) == 1


def test_an_input_that_json_has_no_form_for_is_refused(engine: Engine) -> None:
    for value, why in NOT_JSON.values():
        with pytest.raises(NotJson, match=why):
            engine.start(one(), "Flow", {"x": value})
    named: Any = {1: "one"}
    with pytest.raises(NotJson, match="key 1 is of type int"):
        engine.start(one(), "Flow", named)
    assert counts(dump(engine)) == NEW


def test_a_result_whose_name_is_no_text_fails_its_step(engine: Engine) -> None:
    run = engine.start(one(RETRIED), "Flow", {})
    named: Any = {1: "one", "y": 2}
    assert engine.report(claim(engine), Succeeded(named))
    with pytest.raises(RunFailed, match="key 1 is of type int"):
        run.result(timeout=0)


VALUES = {
    "a reference": {"$payload": "x"},
    "an escape": {"$escaped": 1},
    "an escaped reference": {"$escaped": {"$payload": "x"}},
    "two marks": {"$escaped": 1, "$payload": "x"},
    "marks inside": [{"$payload": "x"}, {"a": {"$escaped": {"$payload": None}}}],
    "a large reference": {"$payload": "x" * 10_000},
    "a large escape": {"$escaped": ["x"] * 10_000},
    "NUL": "before\0after",
    "escaped NUL": "before\\u0000after",
    "emoji": "🦉 👩‍👩‍👧‍👦 é ẞ \u2028",
    "lone surrogates": "\ud800 and \udfff, and in the wrong order \udc00\ud800",
    "large text with all of it": "\0🦉\ud800" * 5_000,
    "odd keys": {"": 1, "\0": 2, "\ud800": 3, "$payload": 4, "a.b": 5},
    "null": None,
    "empty": {"list": [], "map": {}, "text": ""},
    "large whole number": 10**40,
    "small number": 5e-324,
    "minus zero": -0.0,
    "truth": [True, False, 1, 0, 1.0],
}


def test_a_value_comes_back_unchanged_from_every_place_it_passes(engine: Engine) -> None:
    for what, value in VALUES.items():
        run = engine.start(chain("a", "b"), "Flow", {"x": value})
        for _ in range(2):
            task = claim(engine)
            assert repr(task.data) == repr({"x": value}), what
            assert engine.report(task, Succeeded({"y": value}))
        assert repr(run.outputs(timeout=0)) == repr({"y": value}), what
        steps = {step.path: step for step in run.steps()}
        assert repr(steps["Flow.a"].params) == repr({"x": value}), what
        assert repr(steps["Flow.b"].returns) == repr({"y": value}), what


def test_an_answer_from_outside_comes_back_unchanged(engine: Engine) -> None:
    for what, value in VALUES.items():
        run = engine.start(chain("a", "b"), "Flow", {})
        engine.continue_step(engine.tasks(run.id)[0].step_id, {"y": value})
        task = claim(engine)
        assert repr(task.data) == repr({"x": value}), what
        engine.continue_step(task.step_id, {"y": value})
        assert repr(run.outputs(timeout=0)) == repr({"y": value}), what


def test_a_tuple_is_a_list_from_the_start(engine: Engine) -> None:
    each = Block((call("a", "Work", x=X),), foreach=ForeachClause("x", X))
    flow = FacetDeclaration(FacetKind.WORKFLOW, "Flow", params=(Field("x"),), body=(each,))
    run = engine.start(program(event_facet("Work"), flow), "Flow", {"x": (1, (2, 3))})
    assert [engine.claim_task(["t.Work"]).data for _ in "12"] == [{"x": 1}, {"x": [2, 3]}]  # type: ignore[union-attr]
    assert run.info().error is None


def test_a_calculation_that_outgrows_numbers_fails_its_step(engine: Engine) -> None:
    for value, operator in [(1e308, "*"), (1e308, "+"), (-1e308, "*"), (10**4_000, "*")]:
        too_large = Binary(operator, StepRef(("a", "y")), StepRef(("a", "y")))
        flow = program(
            event_facet("Work"),
            workflow([call("a", "Work", x=Literal(1)), call("b", "Work", x=too_large)], {}),
        )
        run = engine.start(flow, "Flow", {})
        finish(engine, value)
        with pytest.raises(RunFailed, match=r"the result of '.' is too large") as caught:
            run.result(timeout=0)
        assert caught.value.path == "Flow.b"
