"""Singleton runs, keys with a time to live, and the cap on open runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from flowengine import AlreadyRunning, InvalidInputs, TooManyRuns, event_facet, workflow
from flowengine.engine import Run
from flowengine.errors import ActionRefused, AnswerRefused
from flowengine.settings import Settings
from flowengine.store.run_keys import RunKeys
from flowengine.testing import Flow

broken: set[str] = set()


@event_facet
def sync(shop: str) -> str:
    if shop in broken:
        raise ValueError(f"{shop} is closed")
    return f"synced {shop}"


@workflow
def nightly(shop: str) -> str:
    return sync(shop)


@workflow
def weekly(shop: str) -> str:
    return sync(shop)


@workflow
def monthly(shop: str) -> str:
    return sync(sync(shop))


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url) as flow:
        yield flow


def start(flow: Flow, shop: str, **options: Any) -> Run[str]:
    return nightly.options(singleton="sync", **options).start(shop)  # type: ignore[return-value]


def test_a_second_start_is_rejected_while_the_first_run_is_open(flow: Flow) -> None:
    first = start(flow, "a")
    with pytest.raises(AlreadyRunning) as caught:
        start(flow, "b")
    assert str(caught.value) == (
        f"{nightly.name} is running with the singleton key 'sync': run {first.id}. Nothing is "
        "started: wait for its end, or start with if_running='return', 'replace' or 'queue'"
    )
    assert len(flow.engine.list()) == 1
    weekly.options(singleton="sync").start("c")
    nightly.options(singleton="sync", tenant="other").start("d")
    flow.settle()
    assert start(flow, "b").id != first.id


def test_a_second_start_returns_the_open_run(flow: Flow) -> None:
    first = start(flow, "a")
    assert start(flow, "b", if_running="return").id == first.id
    flow.settle()
    assert start(flow, "b", if_running="return").id != first.id


def test_queued_runs_begin_one_after_the_other_in_order(flow: Flow) -> None:
    runs = [start(flow, shop, if_running="queue") for shop in "abc"]
    assert [run.state for run in runs] == ["RUNNING", "QUEUED", "QUEUED"]
    assert flow.engine.tasks(runs[1].id) == []
    worker = flow.worker("w")
    for n, run in enumerate(runs):
        assert [each.state for each in runs].count("RUNNING") == 1
        task = worker.claim_next()
        assert task is not None
        assert task.workflow_id == run.id
        worker.work_on(task)
        assert run.result(timeout=0) == f"synced {'abc'[n]}"
    assert worker.claim_next() is None


def test_a_queued_run_begins_although_the_process_died_that_ended_the_one_before(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = start(flow, "a"), start(flow, "b", if_running="queue")
    with monkeypatch.context() as patched:
        patched.setattr(flow.engine.singletons, "begin_next", lambda *_: None)
        flow.settle()
        assert (first.state, second.state) == ("COMPLETED", "QUEUED")
    flow.watchdog()
    assert second.state == "RUNNING"
    flow.settle()
    assert second.result(timeout=0) == "synced b"


def test_a_queued_run_begins_although_the_process_died_before_it_evaluated_it(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(flow, "a")
    second = start(flow, "b", if_running="queue")
    with monkeypatch.context() as patched:
        patched.setattr(flow.engine.after_commit, "consume_inbox", lambda *_: None)
        flow.settle()
        assert second.state == "QUEUED"
    flow.watchdog()
    flow.settle()
    assert second.result(timeout=0) == "synced b"


def test_a_start_replaces_the_open_run_and_those_that_are_queued(flow: Flow) -> None:
    first, second = start(flow, "a"), start(flow, "b", if_running="queue")
    third = start(flow, "c", if_running="replace")
    assert (first.state, second.state, third.state) == ("CANCELLED", "CANCELLED", "RUNNING")
    error = first.info().error
    assert error is not None
    assert error["reason"] == f"run {third.id} replaces it"
    flow.settle()
    assert third.result(timeout=0) == "synced c"


def test_a_queued_run_is_cancelled_and_takes_no_other_action(flow: Flow) -> None:
    start(flow, "a")
    second, third = (start(flow, shop, if_running="queue") for shop in "bc")
    with pytest.raises(ActionRefused, match="the run is QUEUED, and takes cancel"):
        second.hold()
    with pytest.raises(AnswerRefused, match="the run is QUEUED: it has not begun"):
        second.send("approval", 1)
    second.cancel(reason="not needed")
    assert second.state == "CANCELLED"
    flow.settle()
    assert third.state == "COMPLETED"


def failed(flow: Flow, shop: str) -> Run[str]:
    run = start(flow, shop)
    broken.add(shop)
    flow.settle()
    broken.clear()
    assert run.state == "FAILED"
    return run


def taken(kind: str, other: Run[str]) -> str:
    return (
        f"run {other.id} is open, and has the same singleton key 'sync': wait for its end or "
        f"cancel it, then {kind} this run; or fork this run, a fork has no singleton key"
    )


def test_a_run_is_not_reopened_while_another_has_its_singleton_key(flow: Flow) -> None:
    first = failed(flow, "a")
    before, second = first.info(), start(flow, "b")
    with pytest.raises(ActionRefused) as caught:
        first.retry()
    assert caught.value.reason == taken("retry", second)
    with pytest.raises(ActionRefused, match="has the same singleton key"):
        flow.engine.retries.steps_to_run(first.id)  # the dry run
    assert first.info() == before
    assert flow.engine.retry_all().refusals == {first.id: taken("retry", second)}
    fork = first.fork()
    flow.settle()
    assert fork.result(timeout=0) == "synced a"
    first.retry()  # the key is free
    with pytest.raises(AlreadyRunning, match=first.id):
        start(flow, "c")
    flow.settle()
    assert first.result(timeout=0) == "synced a"


def test_a_step_completed_by_hand_does_not_reopen_its_run_either(flow: Flow) -> None:
    first = monthly.options(singleton="sync").start("a")
    worker = flow.worker("w")
    broken.add("a")
    worker.work_on(worker.claim(first, "sync"))  # type: ignore[arg-type]
    broken.clear()
    second = monthly.options(singleton="sync").start("b")
    with pytest.raises(ActionRefused, match=f"run {second.id} is open.* then complete this run"):
        first.complete("monthly.sync", "by hand")
    with pytest.raises(ActionRefused, match="has the same singleton key"):
        flow.engine.complete(first.id, "monthly.sync", "by hand", dry_run=True)
    second.cancel()
    first.complete("monthly.sync", "by hand")
    assert first.state == "RUNNING"


def test_a_key_that_is_taken_after_the_check_is_refused_too(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = failed(flow, "a")
    second = start(flow, "b")
    look, looks = RunKeys.with_singleton, Counter[str]()

    def late(self: RunKeys, *where: str) -> str | None:
        looks["all"] += 1
        return None if looks["all"] == 1 else look(self, *where)

    monkeypatch.setattr(RunKeys, "with_singleton", late)
    with pytest.raises(ActionRefused) as caught:
        first.retry()
    assert caught.value.reason == taken("retry", second)
    assert looks["all"] == 2
    assert (first.state, first.info().alarm) == ("FAILED", None)


def test_a_run_that_was_cancelled_before_it_began_is_not_retried(flow: Flow) -> None:
    start(flow, "a")
    second = start(flow, "b", if_running="queue")
    second.cancel()
    for act in (second.retry, second.fork):
        with pytest.raises(ActionRefused, match="cancelled before it began: start a new one"):
            act()


def test_queued_starts_with_a_key_are_one_run(flow: Flow) -> None:
    start(flow, "a")
    one = start(flow, "b", if_running="queue", key="order-7")
    assert start(flow, "b", if_running="queue", key="order-7").id == one.id


def test_mistakes_of_the_options_are_named(flow: Flow) -> None:
    with pytest.raises(InvalidInputs, match="if_running needs a singleton key"):
        nightly.options(if_running="queue").start("a")
    with pytest.raises(InvalidInputs, match="the singleton key must have 1 to 255 characters"):
        nightly.options(singleton="").start("a")
    with pytest.raises(InvalidInputs, match="if_running must be 'reject', 'return'"):
        nightly.options(singleton="x", if_running="wait").start("a")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputs, match="key_ttl needs a key"):
        nightly.options(key_ttl=3).start("a")


# --- keys with a time to live ---


def test_a_key_is_free_again_after_its_time_to_live(flow: Flow) -> None:
    timed = nightly.options(key="order-7", key_ttl=timedelta(hours=1))
    first = timed.start("a")
    assert timed.start("a").id == first.id
    flow.clock.advance(hours=1)
    second = timed.start("a")
    assert second.id != first.id
    assert nightly.options(key="order-7").start("a").id == second.id
    flow.settle()
    assert first.result(timeout=0) == "synced a"


# --- a cap on open runs ---


def test_a_start_above_the_cap_is_refused(flow: Flow) -> None:
    capped = nightly.options(max_open=2)
    first = capped.start("a")
    keyed = nightly.options(max_open=2, key="k").start("b")
    with pytest.raises(TooManyRuns) as caught:
        capped.start("c")
    assert str(caught.value) == (
        f"{nightly.name} has 2 open runs, which is its limit. Nothing is started: start it again "
        "when some have ended, or raise max_open (the setting max_open_runs)"
    )
    assert nightly.options(max_open=2, key="k").start("b").id == keyed.id
    weekly.options(max_open=2).start("d")
    flow.settle()
    assert first.state == "COMPLETED"
    capped.start("c")


def test_the_setting_caps_every_workflow(database_url: str) -> None:
    with Flow(store_url=database_url, settings=Settings(max_open_runs=1)) as flow:
        flow.start(nightly, "a")
        with pytest.raises(TooManyRuns):
            flow.start(nightly, "b")
        flow.start(weekly, "a")
