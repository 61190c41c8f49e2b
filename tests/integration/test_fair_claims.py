"""A tenant with many tasks, or with long runs, does not keep the others waiting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from flowengine import event_facet, foreach, workflow
from flowengine.authoring import event_facet_names
from flowengine.dispatch import NullNotifier
from flowengine.engine import Engine
from flowengine.engine.recovery import evaluate_reported_runs
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Failed
from flowengine.program.nodes import EventOptions, RetryPolicy
from flowengine.settings import Settings
from flowengine.store import inbox
from flowengine.store.claims import Claim, WorkerIdentity
from flowengine.worker import TaskWorker
from tests.integration.engines import MovedClock, one, opened, side_by_side, watched
from tests.servers import PostgresServer

ME = WorkerIdentity("s", "b" * 32, 1)
MANY = side_by_side(*(f"s{i}" for i in range(60)))
FEW = side_by_side("a", "b", "c")
ORDER: list[int] = []


@event_facet(name="fair.note")
def note(n: int) -> int:
    ORDER.append(n)
    return n


@workflow(name="fair.notes")
def notes(ns: list[int]) -> list[int]:
    return foreach(ns, lambda n: note(n))


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def engine(database_url: str, clock: MovedClock, tmp_path: Path) -> Iterator[Engine]:
    ORDER.clear()
    settings = Settings(
        quick_seconds=1, batch_max_wait=60, chord_time_slice=60, spool_directory=str(tmp_path)
    )
    with opened(database_url, clock=clock, settings=settings) as engine:
        yield engine


def start(engine: Engine, tenant: str, program: Any = FEW, **options: Any) -> str:
    return engine.start(program, "Flow", {}, tenant=tenant, **options).id


def tenants(claimed: Sequence[TaskDefinition]) -> list[str]:
    return [task.tenant for task in claimed]


def claim(engine: Engine, most: int = 1, after: str = "") -> list[str]:
    quick = ["t.Work"] if most > 1 else []
    claimed = engine.claim_batch(["t.Work"], "default", ME, most=most, quick=quick, after=after)
    return tenants(claimed.tasks)


def test_the_heaviest_tenant_is_served_last_however_many_tasks_it_has(
    engine: Engine, clock: MovedClock
) -> None:
    for _ in range(20):
        start(engine, "hostile", MANY, priority=1_000_000_000)
    clock.now += 60_000
    start(engine, "ordinary")
    start(engine, "a")
    claims = [claim(engine, most=2, after="hostile") for _ in range(6)]
    assert claims == [
        *[["ordinary"] * 2, ["ordinary"], ["a"] * 2, ["a"]],
        *[["hostile"] * 2, ["hostile"] * 2],
    ]


def test_the_names_of_tenants_have_no_end(engine: Engine) -> None:
    for tenant in ("b", "", "c", "a"):
        start(engine, tenant, one())
    assert claim(engine, after="b") == ["c"]
    assert claim(engine, after="c") == [""]
    assert [claim(engine, after="z") for _ in range(3)] == [["a"], ["b"], []]


def test_a_poller_serves_tenants_in_turn(engine: Engine) -> None:
    for tenant in ("b", "", "c", "a"):
        start(engine, tenant)
    claimed = [tenants(engine.claim(["t.Work"], "default", ME, most=1)) for _ in range(12)]
    assert claimed == [["a"], ["b"], ["c"], [""]] * 3


@pytest.mark.parametrize("after", ["a", "b"])
def test_a_claim_says_whether_tasks_of_other_tenants_are_due(engine: Engine, after: str) -> None:
    for tenant in ("a", "b"):
        start(engine, tenant, one())
    claims = [
        engine.claim_batch(["t.Work"], "default", ME, most=50, quick=["t.Work"], after=after)
        for _ in range(2)
    ]
    assert [claim.is_more for claim in claims] == [True, False]


def test_the_priority_orders_the_tasks_of_one_tenant(engine: Engine) -> None:
    start(engine, "a")
    urgent = start(engine, "a", one(), priority=7)
    start(engine, "b")
    (first,) = engine.claim(["t.Work"], "default", ME, most=1)
    assert (first.tenant, first.workflow_id) == ("a", urgent)
    assert claim(engine, after="a") == ["b"]


def test_a_tenant_whose_tasks_are_not_due_is_passed_over(engine: Engine, clock: MovedClock) -> None:
    patient = EventOptions(retry=RetryPolicy(attempts=2, first_wait=60))
    start(engine, "a", one(patient))
    (task,) = engine.claim(["t.Work"], "default", ME, most=1)
    engine.report(task, Failed({"type": "E", "message": "later"}))
    start(engine, "b", one())
    start(engine, "b", one())
    assert [claim(engine), claim(engine), claim(engine)] == [["b"], ["b"], []]
    clock.now += 61_000
    assert claim(engine) == ["a"]


def test_a_chord_header_serves_other_tenants_between_its_own_tasks(engine: Engine) -> None:
    worker = TaskWorker(engine, ME, event_facet_names)
    worker._background.begin = lambda: None  # type: ignore[method-assign]
    many = engine.start(notes.program(), notes.name, {"ns": list(range(30))}, tenant="hostile")
    for n in (100, 101):
        engine.start(notes.program(), notes.name, {"ns": [n]}, tenant="ordinary")
    worker._usage.count("hostile", 60)
    worker.work("default", [task.uuid for task in engine.tasks(many.id)])
    assert ORDER[1:3] == [100, 101], "after the first task of the header"
    assert sorted(ORDER) == [*range(30), 100, 101]


def test_runs_of_one_tenant_alone_cost_a_header_no_further_claim(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = TaskWorker(engine, ME, event_facet_names)
    worker._background.begin = lambda: None  # type: ignore[method-assign]
    monkeypatch.setattr(engine, "claim_batch", None)
    many = engine.start(notes.program(), notes.name, {"ns": list(range(30))}, tenant="a")
    engine.start(notes.program(), notes.name, {"ns": [100]}, tenant="a")
    worker.work("default", [task.uuid for task in engine.tasks(many.id)])
    assert sorted(ORDER) == list(range(30))


def test_tasks_that_nobody_serves_are_found_for_every_tenant(engine: Engine) -> None:
    start(engine, "a", MANY)
    start(engine, "a", MANY)
    last = start(engine, "z")
    with engine.database.read() as session:
        assert last in {run_id for run_id, *_ in session.recovery.pending_names()}


class Evaluations(NullNotifier):
    def __init__(self) -> None:
        self.runs: list[str] = []

    def evaluate(self, run_id: str) -> bool:
        self.runs.append(run_id)
        return True


def long_run(engine: Engine, tenant: str) -> str:
    """Start a run that leaves follow-ups to the next commits."""
    inputs = {"ns": list(range(2_500))}
    return engine.start(notes.program(), notes.name, inputs, tenant=tenant).id


def test_a_long_run_of_a_tenant_is_left_to_a_message_after_a_time_slice(
    database_url: str, tmp_path: Path
) -> None:
    notifier = Evaluations()
    settings = Settings(worker_time_slice=1e-9, spool_directory=str(tmp_path))
    with opened(database_url, notifier=notifier, settings=settings) as engine:
        runs = [long_run(engine, "a"), long_run(engine, "a")]
        before = [len(engine.tasks(run_id)) for run_id in runs]
        notifier.runs.clear()
        engine.advance(runs[0])
        assert before[0] < len(engine.tasks(runs[0])) < 2_500, "one commit"
        assert notifier.runs == [runs[1]], "the other run is next"
        while notifier.runs:
            assert len(notifier.runs) == 1, "one message at a time, however many runs"
            engine.advance(notifier.runs.pop())
        assert [len(engine.tasks(run_id)) for run_id in runs] == [2_500, 2_500]


def test_a_process_that_is_refused_the_share_of_a_tenant_leaves_its_follow_ups_to_the_holder(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    notifier = Evaluations()
    settings = Settings(worker_time_slice=1e-9, spool_directory=str(tmp_path))
    url = postgres.new_database()
    with opened(url, notifier=notifier, settings=settings) as engine:
        held, refused, other = (long_run(engine, tenant) for tenant in ("a", "a", "b"))
        before = {run_id: len(engine.tasks(run_id)) for run_id in (held, refused, other)}
        notifier.runs.clear()
        with engine.database.write() as session:
            assert session.inbox.take_share("a", 1)
            engine.advance(refused)
            assert len(engine.tasks(refused)) == before[refused]
            assert notifier.runs == [], "the holder sends the message"
            engine.advance(other)
            assert len(engine.tasks(other)) > before[other], "a tenant has its own share"
        notifier.runs.clear()
        engine.advance(held)
        assert notifier.runs == [refused]


def test_a_run_without_a_tenant_asks_for_no_share(engine: Engine) -> None:
    statements: list[str] = []
    with watched(engine, lambda text, _: statements.append(text)):
        long_run(engine, "")
    assert not [text for text in statements if "advisory" in text]


def test_the_same_tenant_of_another_schema_has_a_share_of_its_own(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    settings = Settings(worker_time_slice=1e-9, spool_directory=str(tmp_path))
    url = postgres.new_database()
    with (
        opened(url, schema="one", settings=settings, notifier=Evaluations()) as engine,
        opened(url, schema="two", settings=settings, notifier=Evaluations()) as other,
    ):
        run_id = long_run(other, "a")
        before = len(other.tasks(run_id))
        with engine.database.write() as session:
            assert session.inbox.take_share("a", 1)
            other.advance(run_id)
        assert len(other.tasks(run_id)) > before


def test_the_next_run_that_waits_is_looked_up_by_its_id(postgres: PostgresServer) -> None:
    # A join with the runs took a second with 50,000 of them, while the tables had no statistics.
    with opened(postgres.new_database()) as engine, engine.database.read() as session:
        values = {"tenant": "a", "after": ""}
        rows = session.execute(text(f"EXPLAIN {inbox._NEXT}"), values).scalars()
        plan = "\n".join(rows)
    assert "Nested Loop" not in plan
    assert "using flowengine_run_pkey" in plan
    assert "Sort" not in plan


def test_an_answer_behind_many_follow_ups_does_not_wait_for_the_share_of_its_tenant(
    postgres: PostgresServer,
) -> None:
    with opened(postgres.new_database(), notifier=Evaluations()) as engine:
        run_id = start(engine, "a", one())
        (step,) = (step for step in engine.steps(run_id) if step.path.endswith(".a"))
        with engine.database.write() as session:
            for n in range(1_000):
                session.inbox.add_fact(f"{n:032}", run_id, "Expand", {"step_key": step.key}, 0)
        with engine.database.write() as session:
            assert session.inbox.take_share("a", 1)
            engine.continue_step(step.id, {"y": 1})
            assert engine.get(run_id).state == "COMPLETED"


def test_the_start_of_a_long_run_sends_one_message(database_url: str, tmp_path: Path) -> None:
    notifier = Evaluations()
    settings = Settings(worker_time_slice=60, spool_directory=str(tmp_path))
    with opened(database_url, notifier=notifier, settings=settings) as engine:
        run_id = engine.start(notes.program(), notes.name, {"ns": [0] * 5_000}, tenant="a").id
        assert notifier.runs == [run_id]


def test_workers_are_woken_for_tasks_that_a_claim_for_other_tenants_passed_over(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = TaskWorker(engine, ME, event_facet_names)
    engine.start(notes.program(), notes.name, {"ns": [1]}, tenant="b")
    claim_batch = engine.claim_batch
    woken: list[Any] = []

    def passing_over(*given: Any, **options: Any) -> Claim:
        claimed = claim_batch(*given, **options)
        return replace(claimed, passed_over=7) if claimed.tasks else claimed

    monkeypatch.setattr(engine, "claim_batch", passing_over)
    monkeypatch.setattr(engine.notifier, "notify", woken.append)
    worker._usage.count("a", 60)
    assert worker._serve_others("default") == (1, True)
    assert {"default": 7} in woken


def test_sqlite_a_claim_for_a_tenant_reads_no_tasks_of_the_tenant_served_longest(
    tmp_path: Path,
) -> None:
    url, counted = f"sqlite:///{tmp_path}/flow.db", []
    with opened(url) as engine:
        start(engine, "small")
        for _ in range(2):
            for _ in range(5):
                start(engine, "big", MANY)
            with engine.database.write() as session:
                driver: Any = session.connection.connection.driver_connection
                steps: list[int] = []
                driver.set_progress_handler(lambda steps=steps: steps.append(1), 1)
                claimed = session.claims.claim(["t.Work"], "default", ME, limit=1, after="big")
                driver.set_progress_handler(None, 1)
            assert tenants(claimed.tasks) == ["small"]
            counted.append(len(steps))
    assert counted[1] < counted[0] * 1.2, "twice as many tasks cost the same"


def test_postgres_a_claim_passes_over_tasks_that_are_not_due_in_the_index(
    postgres: PostgresServer,
) -> None:
    plans: list[str] = []
    with opened(postgres.new_database()) as engine:

        def explain(statement: str, values: Any) -> None:
            if "UPDATE flowengine_task" in statement:
                with engine.database.engine.connect() as other:
                    rows = other.exec_driver_sql(f"EXPLAIN {statement}", values).scalars()
                    plans.append("\n".join(rows))

        with watched(engine, explain):
            assert claim(engine, most=2) == []
    (plan,) = plans
    assert plan.count("due <=") == 4
    assert not [line for line in plan.splitlines() if "Filter:" in line and "due <=" in line]


def test_a_pass_of_recovery_sends_one_message_for_the_runs_of_a_tenant(
    database_url: str, tmp_path: Path
) -> None:
    notifier = Evaluations()
    settings = Settings(worker_time_slice=1e-9, spool_directory=str(tmp_path))
    with opened(database_url, notifier=notifier, settings=settings) as engine:
        runs = [long_run(engine, tenant) for tenant in ("a", "a", "a", "b")]
        notifier.runs.clear()
        evaluate_reported_runs(engine)
        assert len(notifier.runs) == 2, "one for each tenant"
        assert runs[3] in notifier.runs


def test_no_run_with_facts_is_left_out_of_every_page_of_recovery(engine: Engine) -> None:
    runs = sorted(start(engine, "a") for _ in range(5))
    with engine.database.write() as session:
        for number, run_id in enumerate(runs):
            session.inbox.add_fact(f"{number:032}", run_id, "Expand", {"step_key": "none"}, 0)
    with engine.database.read() as session:
        pages = [session.recovery.runs_with_facts(2, first) for first in runs]
        assert pages == [[runs[n], runs[(n + 1) % 5]] for n in range(5)]
        assert session.recovery.runs_with_facts(9, runs[3]) == [*runs[3:], *runs[:3]]


def test_a_header_looks_once_for_tasks_of_others_that_this_process_cannot_run(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = TaskWorker(engine, ME, event_facet_names)
    worker._background.begin = lambda: None  # type: ignore[method-assign]
    claims: list[str] = []
    claim_batch = engine.claim_batch

    def counted(*arguments: Any, **options: Any) -> Any:
        claims.append(options["after"])
        return claim_batch(*arguments, **options)

    monkeypatch.setattr(engine, "claim_batch", counted)
    many = engine.start(notes.program(), notes.name, {"ns": list(range(30))}, tenant="hostile")
    start(engine, "ordinary", one())  # of a facet without code
    worker.work("default", [task.uuid for task in engine.tasks(many.id)])
    assert len(claims) == 1
