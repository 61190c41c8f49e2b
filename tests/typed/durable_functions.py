"""Types of durable functions, checked by scripts/check-programs; this is never run."""

import asyncio
import datetime
from typing import assert_type

from flowengine import (
    FunctionWorkflow,
    RunHandle,
    StepFailed,
    Workflow,
    changed,
    event_facet,
    gather,
    now,
    random,
    sleep,
    sleep_until,
    step,
    wait_for,
    workflow,
)


@event_facet
def fetch(url: str, deep: bool = False) -> str:
    return url


@event_facet(effects=False)
async def count(text: str) -> int:
    return len(text)


def longer(text: str) -> str:
    return text * 2


@workflow(version=2, task_list="agents", on_divergence="fail")
async def pages(urls: list[str]) -> int:
    text = await fetch.acall(urls[0], deep=True)
    assert_type(text, str)
    assert_type(await count.named("words").acall(text), int)
    assert_type(await count.with_options(timeout=5).acall(text), int)
    assert_type(await gather(*(count.acall(url) for url in urls), limit=8), list[int])
    first, _ = await asyncio.gather(fetch.acall("a"), count.acall("b"))
    assert_type(await fetch.acall(first), str)
    assert_type(await step(longer, text), str)
    assert_type(await wait_for.acall("approved", bool, timeout=60), bool)
    assert_type(await sleep(datetime.timedelta(days=1)), datetime.datetime)
    assert_type(await sleep_until(now()), datetime.datetime)
    assert_type(random(), float)
    assert_type(changed("cheaper"), bool)
    assert_type(await survey.acall(urls), list[int])
    assert_type(await pages.acall(urls), int)
    try:
        return await count.acall(text)
    except StepFailed as problem:
        return len(problem.message)


@workflow
async def bare(url: str) -> str:
    return await fetch.acall(url)


@workflow
def survey(urls: list[str]) -> list[int]:
    assert_type(bare(urls[0]), str)
    return [pages(urls)]


@workflow(run=True)
def bill(order: str) -> int:
    assert_type(fetch(order), str)
    return count(order)


kept: FunctionWorkflow[[str], str] = bare
plain: Workflow[[str], int] = bill


async def start() -> None:
    assert_type(pages.start(["a"]), RunHandle[int])
    assert_type(await pages.astart(["a"]), RunHandle[int])
    assert_type(pages.version, int)
