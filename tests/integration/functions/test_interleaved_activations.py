"""Interleaved activations: one commit records the calls of a round, and none disturbs another."""

from __future__ import annotations

import functools
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy.exc import DataError, OperationalError

from flowengine import event_facet, foreach, gather, workflow
from flowengine.authoring import event_facet_names
from flowengine.engine import Run
from flowengine.evaluator import RunState, TaskState
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.evaluator.triggers import Lost
from flowengine.store.calls import Calls, MadeCalls
from flowengine.store.claims import WorkerIdentity
from flowengine.worker import TaskWorker
from flowengine.worker.claimed_tasks import ClaimState
from tests.integration.functions.workers import IN_PLACE, Worked, worked

pytestmark = pytest.mark.each_database

COUNT, LENGTH = 4, 5
TIMEOUT = 60.0
AWAY = OperationalError("", {}, ConnectionError("connection refused"))
REFUSED = DataError("", {}, ValueError("too large"))
made: list[tuple[int, int]] = []  #: the calls whose code was run, in order
before: dict[tuple[int, int], Callable[[], object]] = {}  #: called by one of them, once


@event_facet
def noted(name: int, n: int) -> int:
    made.append((name, n))
    if (name, n) in before:
        before.pop((name, n))()
    return n + 1


@workflow
async def named_chain(name: int, count: int) -> int:
    n = 0
    for _ in range(count):
        n = await noted(name, n)
    return n


@workflow
async def named_group(name: int, count: int) -> list[int]:
    return await gather(*(noted(name, n) for n in range(count)))


@workflow
def several_chains(names: list[int]) -> list[int]:
    return foreach(names, lambda name: named_chain(name, LENGTH))


ended_in: list[int] = []  #: the threads in which coroutines were closed


@workflow
async def tidy_chain(name: int, count: int) -> int:
    n = 0
    try:
        while n < count:
            n = await noted(name, n)
    finally:
        ended_in.append(threading.get_ident())
    return n


@pytest.fixture(autouse=True)
def nothing_made() -> Iterator[None]:
    yield
    before.clear()
    made.clear()
    ended_in.clear()


def learnt(work: Worked) -> Worked:
    """Let the worker learn that the functions and their facet are quick."""
    for flow in (named_chain, named_chain, named_group, named_group):
        work.run(flow, 99, 2)
    made.clear()
    return work


@pytest.fixture
def work(database_url: str, tmp_path: Path) -> Iterator[Worked]:
    with worked(database_url, tmp_path, **IN_PLACE) as work:
        yield learnt(work)


class Inserts:
    """The statements that record calls in place; they may be refused, or their answers lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs: list[int] = []  #: of each statement
        self.problem: Callable[[Sequence[MadeCalls]], BaseException | None] = lambda _: None
        self.is_answer_lost = False
        insert = Calls.insert

        def inserted(calls: Calls, given: Sequence[MadeCalls]) -> Any:
            self.runs.append(len(given))
            problem = self.problem(given)
            if problem is not None:
                raise problem
            held = insert(calls, given)
            if self.is_answer_lost:
                self.is_answer_lost = False
                held()
                raise AWAY
            return held

        monkeypatch.setattr(Calls, "insert", inserted)


@pytest.fixture
def inserts(monkeypatch: pytest.MonkeyPatch, work: Worked) -> Inserts:
    return Inserts(monkeypatch)


def started(work: Worked, count: int = LENGTH) -> list[Run[Any]]:
    return [work.start(named_chain, name, count) for name in range(COUNT)]


def each_once(count: int = LENGTH) -> Counter[tuple[int, int]]:
    return Counter((name, n) for name in range(COUNT) for n in range(count))


def calls_of(run: Run[Any]) -> list[Any]:
    return [step for step in run.steps() if step.object_type == ObjectType.FUNCTION_CALL]


def test_functions_of_a_batch_share_the_commits_of_their_calls(
    work: Worked, inserts: Inserts
) -> None:
    runs = started(work)
    work.settle()
    assert [run.result(timeout=0) for run in runs] == [LENGTH] * COUNT
    assert inserts.runs == [COUNT] * LENGTH
    assert made == [(name, n) for n in range(LENGTH) for name in range(COUNT)]
    for run in runs:
        assert [call.state for call in calls_of(run)] == [StepState.COMPLETE] * LENGTH


def test_a_function_goes_on_alone_when_the_others_have_ended(
    work: Worked, inserts: Inserts
) -> None:
    short, long = work.start(named_chain, 0, 2), work.start(named_chain, 1, 4)
    work.settle()
    assert (short.result(timeout=0), long.result(timeout=0)) == (2, 4)
    assert inserts.runs == [2, 2, 1, 1]


def test_a_round_of_many_calls_is_recorded_before_it_ends(work: Worked, inserts: Inserts) -> None:
    runs = [work.start(named_group, name, 60) for name in range(COUNT)]
    work.settle()
    assert [run.result(timeout=0) for run in runs] == [list(range(1, 61))] * COUNT
    assert inserts.runs == [2, 2]


def test_functions_of_one_run_are_not_recorded_together(work: Worked, inserts: Inserts) -> None:
    run = work.start(several_chains, [0, 1, 2, 3])
    work.settle()
    assert run.result(timeout=0) == [LENGTH] * 4
    assert set(inserts.runs) == {1}
    assert Counter(made) == each_once()


def test_a_function_that_has_lost_its_lease_does_not_disturb_the_others(
    work: Worked, inserts: Inserts
) -> None:
    runs = started(work)

    def lose() -> None:
        (task,) = [task for task in work.engine.tasks(runs[1].id) if task.state == "running"]
        assert work.engine.end_try(runs[1].id, task.uuid, task.lease, Lost("a watchdog said so"))

    before[1, 2] = lose
    work.settle()
    work.settle()
    assert [run.result(timeout=0) for run in runs] == [LENGTH] * COUNT
    # The call that was made without the lease was not recorded: it is made again.
    assert Counter(made) == each_once() + Counter([(1, 2)])
    assert [len(calls_of(run)) for run in runs] == [LENGTH] * COUNT


def test_when_the_common_commit_is_refused_each_function_records_its_own(
    work: Worked, inserts: Inserts
) -> None:
    inserts.problem = lambda made: REFUSED if len(made) > 1 else None
    runs = started(work)
    work.settle()
    assert [run.result(timeout=0) for run in runs] == [LENGTH] * COUNT
    assert Counter(made) == each_once()
    assert Counter(inserts.runs) == {COUNT: LENGTH, 1: LENGTH * COUNT}


def test_while_the_database_is_away_functions_go_on_behind_their_last_recorded_calls(
    work: Worked, inserts: Inserts
) -> None:
    runs = started(work)

    def refuse() -> None:
        inserts.problem = lambda _: AWAY

    before[0, 2] = refuse
    work.settle()
    inserts.problem = lambda _: None
    assert [run.info().state for run in runs] == [RunState.RUNNING] * COUNT
    assert [len(calls_of(run)) for run in runs] == [2] * COUNT
    work.pass_time(2)
    assert [run.result(timeout=0) for run in runs] == [LENGTH] * COUNT
    assert Counter(made) == each_once() + Counter((name, 2) for name in range(COUNT))


def losses(work: Worked, runs: Sequence[Run[Any]]) -> list[int]:
    return [sum(task.losses for task in work.engine.tasks(run.id)) for run in runs]


def test_a_lost_answer_to_the_common_commit_is_counted_for_no_function(
    work: Worked, inserts: Inserts
) -> None:
    runs = started(work)
    inserts.is_answer_lost = True
    work.settle()
    work.pass_time(2)
    assert [run.result(timeout=0) for run in runs] == [LENGTH] * COUNT
    assert losses(work, runs) == [0] * COUNT
    assert Counter(made) == each_once()


def test_a_function_whose_calls_cannot_be_recorded_disturbs_no_other_one(
    work: Worked, inserts: Inserts
) -> None:
    runs = started(work)

    def problem(made: Sequence[MadeCalls]) -> Exception | None:
        is_bad = any(one.run_id == runs[2].id for one in made)
        return RuntimeError("the codec has no key") if is_bad else None

    inserts.problem = problem
    with pytest.raises(RuntimeError):
        work.settle()
    inserts.problem = lambda _: None
    work.settle()
    assert [run.result(timeout=0) for run in runs] == [LENGTH] * COUNT
    assert losses(work, runs) == [0, 0, 1, 0]
    assert Counter(made) == each_once() + Counter([(2, 0)])


def test_an_interrupt_within_the_common_commit_repeats_no_call(
    work: Worked, inserts: Inserts
) -> None:
    runs = started(work)
    problems: list[BaseException] = [KeyboardInterrupt()]
    inserts.problem = lambda _: problems.pop() if problems else None
    with pytest.raises(KeyboardInterrupt):
        work.settle()
    assert work.worker.claimed_tasks.in_states(*ClaimState.ACTIVE) == []
    work.settle()
    assert [run.result(timeout=0) for run in runs] == [LENGTH] * COUNT
    assert losses(work, runs) == [0] * COUNT
    assert Counter(made) == each_once()


def test_a_task_whose_thread_is_interrupted_before_it_starts_is_given_back(
    work: Worked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    work.worker._sizing.count(named_chain.activation.name, 1e9)  # it is not quick now
    run = work.start(named_chain, 0, LENGTH)
    with monkeypatch.context() as patched:
        patched.setattr(work.engine.database, "return_connection", interrupt)
        with pytest.raises(KeyboardInterrupt):
            work.settle()
    assert work.worker.claimed_tasks.in_states(*ClaimState.ACTIVE) == []
    work.pass_time(2)
    assert run.result(timeout=0) == LENGTH


def test_a_call_that_ends_its_thread_takes_no_other_function_along(
    work: Worked, inserts: Inserts
) -> None:
    runs = started(work)

    def die() -> None:
        raise SystemExit

    before[2, 3] = die
    with pytest.raises(SystemExit):
        work.settle()
    # Those that had their turn in this round have lost nothing, and are not counted as lost.
    assert [len(calls_of(run)) for run in runs] == [4, 4, 3, 3]
    work.settle()
    assert [run.result(timeout=0) for run in runs] == [LENGTH] * COUNT
    assert Counter(made) == each_once() + Counter([(2, 3)])
    assert losses(work, runs) == [0, 0, 1, 0]


def test_functions_behind_a_call_that_takes_long_go_on_elsewhere(
    database_url: str, tmp_path: Path
) -> None:
    """They wait for `batch_max_wait` at most, and no call of theirs is made again."""
    quickly = {**IN_PLACE, "batch_max_wait": 0.05}
    with worked(database_url, tmp_path, **quickly) as work:
        learnt(work)
        is_in, go_on = threading.Event(), threading.Event()

        def block() -> None:
            is_in.set()
            assert go_on.wait(TIMEOUT)

        runs = started(work)
        before[1, 2] = block
        first = threading.Thread(target=work.settle)
        first.start()
        assert is_in.wait(TIMEOUT)
        others = [run for name, run in enumerate(runs) if name != 1]
        other = TaskWorker(work.engine, WorkerIdentity("t", "c" * 32, 2), event_facet_names)
        try:
            while not all(run.info().is_final for run in others):
                other.drain("default")
        finally:
            go_on.set()
            first.join(TIMEOUT)
            other.end()
        work.settle()
        assert [run.result(timeout=0) for run in runs] == [LENGTH] * COUNT
        assert Counter(made) == each_once()


def test_the_thread_that_runs_a_function_closes_its_coroutine(
    database_url: str, tmp_path: Path
) -> None:
    """Its `finally` blocks may take long: the guard has others to look after."""
    quickly = {**IN_PLACE, "batch_max_wait": 0.05}
    with worked(database_url, tmp_path, **quickly) as work:
        for _ in range(3):
            work.run(tidy_chain, 99, 2)
        made.clear()
        ended_in.clear()

        def wait_until_others_are_released() -> None:
            while any(held(run) for run in others):
                time.sleep(0.01)

        def held(run: Run[Any]) -> bool:
            return any(task.state == TaskState.RUNNING for task in work.engine.tasks(run.id))

        runs = [work.start(tidy_chain, name, LENGTH) for name in range(COUNT)]
        others = [run for name, run in enumerate(runs) if name != 1]
        before[1, 2] = wait_until_others_are_released
        work.settle()
        work.settle()
        assert [run.result(timeout=0) for run in runs] == [LENGTH] * COUNT
        assert Counter(made) == each_once()
        assert set(ended_in) == {threading.get_ident()}


def test_functions_that_are_stopped_record_each_its_own_if_the_common_commit_is_refused(
    work: Worked, inserts: Inserts
) -> None:
    runs = started(work)

    def die() -> None:
        inserts.problem = lambda made: REFUSED if len(made) > 1 else None
        raise SystemExit

    before[3, 2] = die
    with pytest.raises(SystemExit):
        work.settle()
    assert [len(calls_of(run)) for run in runs] == [3, 3, 3, 2]
    work.settle()
    assert [run.result(timeout=0) for run in runs] == [LENGTH] * COUNT
    assert Counter(made) == each_once() + Counter([(3, 2)])
    assert losses(work, runs) == [0, 0, 0, 1]


def test_a_worker_that_stops_gives_back_the_functions_that_wait(
    work: Worked, inserts: Inserts
) -> None:
    runs = started(work)
    before[1, 2] = work.worker.claim_no_more
    work.settle()
    # One goes on to its end. The others have their calls recorded, and make no more.
    assert [len(calls_of(run)) for run in runs] == [3, LENGTH, 2, 2]
    other = TaskWorker(work.engine, WorkerIdentity("t", "c" * 32, 2), event_facet_names)
    while other.drain("default"):
        pass
    other.end()
    assert [run.result(timeout=0) for run in runs] == [LENGTH] * COUNT
    assert Counter(made) == each_once()
    assert losses(work, runs) == [0] * COUNT


def test_a_kept_coroutine_does_not_go_on_behind_calls_of_another_process(
    database_url: str, tmp_path: Path
) -> None:
    """That process was stopped in the middle of the activation, which it gave back uncounted."""
    with worked(database_url, tmp_path, **IN_PLACE) as work:
        other = TaskWorker(work.engine, WorkerIdentity("t", "c" * 32, 2), event_facet_names)
        quick = (named_chain.activation.name, noted.name)
        for name in quick * 2:
            other._sizing.count(name, 0.0001)
        runs = started(work)
        for _ in runs:
            work.worker.poll("default", 1)  # an activation of each: this process keeps it
        for _ in runs:
            other.poll("default", 1)  # its first call, which had a task
        before[1, 3] = other.claim_no_more
        while other.drain("default"):
            pass
        other.end()
        assert [len(calls_of(run)) for run in runs] == [4, LENGTH, 3, 3]
        for name in quick * 2:
            work.worker._sizing.count(name, 0.0001)
        work.settle()
        assert [run.result(timeout=0) for run in runs] == [LENGTH] * COUNT
        assert Counter(made) == each_once()


def test_no_call_is_repeated_while_guards_stop_functions_of_several_workers(
    database_url: str, tmp_path: Path
) -> None:
    """Coroutines are kept, stopped, and continued elsewhere, in three threads of two processes."""
    count, length = 40, 8
    short = {"batch_max_wait": 0.05, "worker_time_slice": 0.1, "quick_seconds": 0.01}
    with worked(database_url, tmp_path, **short) as work:
        learnt(work)
        other = TaskWorker(work.engine, WorkerIdentity("t", "c" * 32, 2), event_facet_names)
        naps = Random(5)
        for call in itertools.product(range(count), range(length)):
            seconds = 0.12 if naps.random() < 0.04 else 0.002 * naps.random()
            before[call] = functools.partial(time.sleep, seconds)
        runs = [work.start(named_chain, name, length) for name in range(count)]
        problems: list[BaseException] = []
        is_over = threading.Event()

        def work_until_all_have_ended(worker: TaskWorker) -> None:
            while not is_over.is_set():
                try:
                    worker.drain("default")
                except BaseException as problem:
                    problems.append(problem)

        workers = (work.worker, work.worker, other)
        threads = [threading.Thread(target=work_until_all_have_ended, args=(w,)) for w in workers]
        for thread in threads:
            thread.start()
        ends = time.monotonic() + TIMEOUT
        while not all(run.info().is_final for run in runs) and time.monotonic() < ends:
            time.sleep(0.05)
        is_over.set()
        for thread in threads:
            thread.join(TIMEOUT)
        other.end()
        assert problems == []
        assert [run.result(timeout=0) for run in runs] == [length] * count
        assert Counter(made) == Counter(itertools.product(range(count), range(length)))


def test_functions_whose_calls_are_recorded_are_in_flight(work: Worked, inserts: Inserts) -> None:
    """The record may be the cause of the death of the process, which is counted then."""
    marked: list[int] = []
    markers = work.worker.claimed_tasks.markers
    inserts.problem = lambda _: marked.append(len(markers.running(os.getpid())))  # type: ignore[func-returns-value]
    in_code: list[int] = []
    before[2, 3] = lambda: in_code.append(len(markers.running(os.getpid())))
    started(work)
    work.settle()
    assert marked == [COUNT] * LENGTH
    assert in_code == [1], "those that wait are not"


def test_functions_behind_quick_ones_are_not_stopped(database_url: str, tmp_path: Path) -> None:
    """However long all of them take together: one has ended, and waits to be reported."""
    with worked(database_url, tmp_path, **{**IN_PLACE, "batch_max_wait": 0.2}) as work:
        learnt(work)
        runs = [work.start(named_chain, 99, 1), *started(work, 20)]
        for name in range(COUNT):
            for n in range(20):
                before[name, n] = lambda: time.sleep(0.01)
        work.settle()
        assert [run.result(timeout=0) for run in runs] == [1, *[20] * COUNT]
        for run in runs:
            (task,) = work.engine.tasks(run.id)
            assert task.lease == 1, "it was released"


def test_the_time_slice_of_a_function_is_its_own(database_url: str, tmp_path: Path) -> None:
    """It neither grows with the others of its batch, nor do they use it up."""
    sliced = {**IN_PLACE, "worker_time_slice": 0.2}
    with worked(database_url, tmp_path, **sliced) as work:
        learnt(work)
        work.engine.is_work_due = lambda _lists: True  # type: ignore[method-assign]
        long, *others = [work.start(named_chain, name, 8) for name in range(COUNT)]
        for n in range(8):
            before[0, n] = lambda: time.sleep(0.06)
        work.worker.drain("default")
        # Calls behind the slice have tasks; those of the others are made in place.
        assert 1 < len(work.engine.tasks(long.id)) <= 8
        assert [len(work.engine.tasks(run.id)) for run in others] == [1] * (COUNT - 1)
        work.settle()
        assert long.result(timeout=0) == 8


@pytest.mark.parametrize("is_thread_ended", [False, True])
def test_a_process_that_ends_releases_the_functions_that_wait(
    work: Worked, is_thread_ended: bool
) -> None:
    runs = started(work)

    def end() -> None:
        work.worker.client.release_active(0.0)
        if is_thread_ended:
            raise SystemExit

    before[1, 2] = end
    with suppress(SystemExit):
        work.settle()
    work.settle()
    assert [run.result(timeout=0) for run in runs] == [LENGTH] * COUNT
    # Calls that were made without the lease are made again.
    again = range(2) if is_thread_ended else range(COUNT)
    assert Counter(made) == each_once() + Counter((name, 2) for name in again)
