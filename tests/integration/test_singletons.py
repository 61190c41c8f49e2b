"""Singleton runs, keys with a time to live, and the cap on open runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from flowengine import AlreadyRunning, InvalidInputs, TooManyRuns, event_facet, workflow
from flowengine.engine import Run
from flowengine.errors import ActionRefused, AnswerRefused
from flowengine.settings import Settings
from flowengine.testing import Flow


@event_facet
def sync(shop: str) -> str:
    return f"synced {shop}"


@workflow
def nightly(shop: str) -> str:
    return sync(shop)


@workflow
def weekly(shop: str) -> str:
    return sync(shop)


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
