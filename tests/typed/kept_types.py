"""Types that mypy and pyright infer, checked by scripts/check-programs; this is never run."""

import datetime
import uuid as uuids
from typing import Any, assert_type

from celery import Celery, shared_task

from flowengine import (
    CaughtError,
    Collected,
    EventFacet,
    RunHandle,
    and_,
    attempt,
    contains,
    event_facet,
    foreach,
    is_in,
    not_,
    now,
    uuid,
    when,
    workflow,
)
from flowengine.engine import RunInfo

app = Celery("typed")


@shared_task
def charge(customer: str, cents: int = 1) -> str:
    return customer * cents


@app.task(bind=True, queue="payments")
def refund(self: Any, customer: str) -> int:
    return len(customer)


@event_facet
def fetch(url: str, deep: bool = False) -> str:
    return url


@event_facet(task_list="io", timeout=3)
async def count(text: str) -> int:
    return len(text)


@event_facet
def stop() -> None:
    pass


@event_facet
def pair(number: int) -> tuple[int, str]:
    return number, ""


def handle(error: CaughtError) -> int:
    return len(error.message)


pay = event_facet(charge)
pay_elsewhere = event_facet(task_list="till")(charge)
pay_back: EventFacet[[str], int] = event_facet(refund)


@workflow
def pages(urls: list[str], flag: bool = True) -> int:
    text = fetch(urls[0], deep=True)
    assert_type(text, str)
    assert_type(count.after(text)(text), int)
    assert_type(count.named("words")(text), int)
    assert_type(foreach(urls, lambda url: count(fetch(url))), list[int])
    assert_type(foreach(urls, fetch, collect_errors=True), Collected[str])
    assert_type(when(flag, lambda: fetch(text), otherwise=lambda: count(text)), str | int)
    assert_type(when(flag, lambda: fetch(text), otherwise=None), str | None)
    assert_type(when(flag, "a", otherwise=lambda: count(text)), str | int)
    assert_type(when(flag, then=1, otherwise="x", name="n"), int | str)
    assert_type(when((flag, 1), (flag, 2), otherwise=None), int | None)
    assert_type(when((flag, "a"), (flag, lambda: fetch(text)), otherwise=lambda: fetch(text)), str)
    assert_type(
        when((flag, lambda: fetch("a")), (flag, lambda: count("b")), otherwise=lambda: None),
        str | int | None,
    )
    when(flag, lambda: fetch(text))
    when((flag, lambda: fetch(text)), (flag, stop))
    assert_type(attempt(lambda: fetch(text), catch=lambda error: error.message), str)
    assert_type(attempt(lambda: fetch(text), catch={ValueError: handle}), str | int)
    assert_type(attempt(lambda: fetch(text), catch=handle, always=stop), str | int)
    assert_type(attempt(lambda: fetch(text), always=stop), str)
    assert_type(attempt(lambda: count(text), catch={"WorkerLost": handle}), int)
    assert_type(attempt(lambda: fetch(text), failed=handle, reraise=True), str)
    assert_type(attempt(lambda: fetch(text), failed={OSError: handle}, always=stop), str)
    collected = foreach(urls, fetch, collect_errors=True, limit=2)
    assert_type(collected.results, list[str])
    assert_type(collected.errors[0].message, str)
    number, word = pair(1)
    assert_type(number, int)
    assert_type(word, str)
    assert_type(and_(number > 1, lambda: flag, not_(is_in(1, [2]) & contains("a", "b"))), bool)
    assert_type(now(after=text), datetime.datetime)
    assert_type(uuid(), uuids.UUID)
    assert_type(pay(text, cents=2), str)
    assert_type(pay_elsewhere(text), str)
    assert_type(pay_back(text), int)
    child = pages.start(urls)
    assert_type(child.result(), int)
    return count(text)


def read(run: RunHandle[int]) -> None:
    assert_type(run.id, str)
    assert_type(run.state, str)
    assert_type(run.info(), RunInfo)
    assert_type(run.info().error_text, str | None)
    assert_type([step.path for step in run.steps()], list[str])
    assert_type(run.result(timeout=5), int)
    run.outputs()["result"]


async def start() -> None:
    read(pages.start(["a"]))
    read(pages.options(key="k", priority=1).start(urls=["a"], flag=False))
    assert_type(pages.start_many([{"urls": ["a"]}]), list[RunHandle[int]])
    run = await pages.astart(["a"])
    read(run)
    assert_type(await run.aresult(timeout=5), int)
    assert_type((await run.ainfo()).state, str)
    assert_type([step.state for step in await run.asteps()], list[str])
    (await run.aoutputs())["result"]
