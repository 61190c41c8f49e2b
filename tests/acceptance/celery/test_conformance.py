"""The conformance corpus on Celery workers: what holds in process holds on Redis and PostgreSQL.

All runs are started at once and share the workers. Here nobody decides in which order tasks
are answered, nor has a result reported twice: a case's `order` and `redeliver` say nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from flowengine.engine import Engine, Run
from flowengine.errors import ProgramError
from flowengine.evaluator import TaskState
from flowengine.evaluator.triggers import Succeeded
from flowengine.store.claims import WorkerIdentity
from flowengine.testing.program_runner import NoAnswer, outcome_of
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet
from tests.acceptance.celery.rows import about_runs, wait_for
from tests.celery_nodes import Fleet, until
from tests.corpus import CASES, Case, answers, check, check_error, event_facets, unanswered
from tests.registries import empty_registry

INVALID = {n: case for n, case in CASES.items() if case["expect"]["status"] == "INVALID"}
WAITING = {n: case for n, case in CASES.items() if case["expect"]["status"] == "WAITING"}
ENDING = {n: case for n, case in CASES.items() if n not in {*INVALID, *WAITING}}


@pytest.fixture(scope="module")
def module_fleet(make_fleet: MakeFleet) -> Iterator[Fleet]:
    with empty_registry():  # a client that allows scripts also offers to run them
        fleet = make_fleet("tests.acceptance.celery.corpus_facets", FLOWENGINE_SCRIPTS="on")
        for name in ("first", "second"):
            fleet.add_worker(name, *QUICK_START, wait=False)
        fleet.add_beat()
        yield fleet


@pytest.fixture(scope="module")
def started(module_fleet: Fleet) -> dict[str, Run[None]]:
    """A run of each case that can be loaded, all at once; those that end have ended."""
    engine = module_fleet.engine
    runs = {
        name: engine.start(case["program"], case["workflow"], case["inputs"])
        for name, case in CASES.items()
        if name not in INVALID
    }
    for name, case in WAITING.items():
        _answer_from_outside(engine, runs[name].id, case)
    wait_for(engine, [runs[name] for name in ENDING], 60)
    return runs


def _answer_from_outside(engine: Engine, run_id: str, case: Case) -> None:
    """Answer what no worker has the code of, as far as the corpus has an answer."""
    known = answers(case)
    for task in engine.tasks(run_id):
        if task.name in unanswered(case):
            try:
                result = known[task.name](dict(task.data or {}))
            except NoAnswer:
                continue
            claimed = engine.claim_one(task.uuid, task.task_list_name, WorkerIdentity())
            assert claimed is not None
            engine.report(claimed, Succeeded(result))


def test_no_two_cases_want_one_facet_of_a_worker() -> None:
    declared = Counter(name for case in CASES.values() for name in event_facets(case))
    assert [name for name, times in declared.items() if times > 1] == []


@pytest.mark.parametrize("name", ENDING)
def test_a_program_ends_on_workers_as_the_corpus_says(
    name: str, started: dict[str, Run[None]], module_fleet: Fleet
) -> None:
    check(ENDING[name], outcome_of(module_fleet.engine, started[name].id))


@pytest.mark.parametrize("name", WAITING)
def test_a_task_without_a_worker_for_its_code_stays_pending_with_an_alarm(
    name: str, started: dict[str, Run[None]], module_fleet: Fleet
) -> None:
    run, case = started[name], WAITING[name]
    alarm = until(lambda: run.info().alarm or "", "the alarm of the watchdog")
    assert any(repr(facet) in alarm for facet in unanswered(case))
    check(case, outcome_of(module_fleet.engine, run.id))
    states = Counter(task.state for task in module_fleet.engine.tasks(run.id))
    assert states.keys() == {TaskState.PENDING, TaskState.COMPLETED}


@pytest.mark.parametrize("name", INVALID)
def test_a_program_that_is_refused_leaves_no_run_behind(name: str, module_fleet: Fleet) -> None:
    case, engine = INVALID[name], module_fleet.engine
    with pytest.raises(ProgramError) as problem:
        engine.start(case["program"], case["workflow"], case["inputs"])
    check_error(case, str(problem.value))
    assert case["workflow"] not in {run.workflow for run in engine.list(limit=1000)}


def test_every_task_was_answered_once_by_a_worker(
    started: dict[str, Run[None]], module_fleet: Fleet
) -> None:
    query = about_runs(
        "SELECT step_id, count(*) FROM flowengine_task WHERE run_id IN :ids "
        "GROUP BY step_id HAVING count(*) > 1"
    )
    ids = [started[name].id for name in ENDING]
    with module_fleet.engine.database.read() as connection:
        assert connection.execute(query, {"ids": ids}).all() == []
    pids = {task.pid for run_id in ids for task in module_fleet.engine.tasks(run_id)}
    children = {pid for worker in module_fleet.workers for pid in worker.children()}
    assert pids <= children
