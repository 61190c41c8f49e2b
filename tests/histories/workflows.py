"""The code of the recorded runs' facets. It must stay: recorded runs call it by name."""

from __future__ import annotations

import asyncio
from typing import Any

from flowengine import (
    Breaker,
    Limit,
    Retry,
    attempt,
    current_step,
    event_facet,
    foreach,
    gather,
    sleep,
    uuid,
    wait_for,
    when,
    workflow,
)
from flowengine.afl import compile_text
from flowengine.agents import agent
from flowengine.models import Answer, ModelRequest, ScriptedModel, StopReason, ToolCall, Usage

ITEMS = 110  #: of the long foreach: more than its first portion


class Refused(Exception):
    pass


@event_facet(name="histories.add")
def add(a: int, b: int) -> int:
    return a + b


@event_facet(name="histories.total")
def total(numbers: list[int]) -> int:
    return sum(numbers)


@event_facet(name="histories.refuse")
def refuse(n: int) -> int:
    raise Refused(f"{n} is refused")


@event_facet(name="histories.third_time", retry=Retry(attempts=3, first_wait=60, factor=2))
def third_time(n: int) -> int:
    if current_step().try_number < 3:
        raise ConnectionError("not yet")
    return n


@event_facet(
    name="histories.call_service",
    breaker=Breaker("histories", failure_threshold=1, timeout_seconds=60, half_open_max_calls=1),
    retry=Retry(attempts=3, first_wait=0.1, factor=1),
)
def call_service(n: int) -> int:
    if current_step().try_number < 2:
        raise ConnectionError("the service is down")
    return n


@event_facet(name="histories.text")
def text(letter: str) -> str:
    return letter * 10_000


@event_facet(name="histories.length")
def length(letters: str) -> int:
    return len(letters)


@event_facet(name="histories.Weigh")
def weigh(grams: int) -> dict[str, int]:
    return {"net": grams - 8}


@workflow(name="histories.chain")
def chain(n: int) -> int:
    for _ in range(5):
        n = add(n, 1)
    return n


@workflow(name="histories.fan_out")
def fan_out(n: int) -> int:
    return total(foreach(list(range(12)), lambda i: add(i, n)))


@workflow(name="histories.long_foreach")
def long_foreach(items: list[int]) -> int:
    return total(foreach(items, lambda i: add(i, 1)))


@workflow(name="histories.recovery")
def recovery(n: int) -> int:
    chosen = when(n > 5, lambda: add(n, 100), otherwise=lambda: add(n, 200))
    return attempt(
        lambda: refuse(chosen),
        catch={Refused: lambda error: add.named("instead")(chosen, 1)},
        always=lambda: add.named("tidy_up")(n, 0),
    )


@workflow(name="histories.failure")
def failure(n: int) -> int:
    """A failed step skips its dependents; another branch goes on."""
    return total([add(refuse(n), 1), add.named("unrelated")(n, 2)])


@workflow(name="histories.child")
def child(n: int) -> int:
    return add(add.named("first")(n, 1), 1)


@workflow(name="histories.parent")
def parent(n: int) -> int:
    return total(foreach([n, n + 1], lambda i: child.start(i).result()))


@workflow(name="histories.retried")
def retried(n: int) -> int:
    return add(third_time(n), 1)


@workflow(name="histories.guarded")
def guarded(n: int) -> int:
    return add(call_service(n), 1)


@workflow(name="histories.large")
def large(letter: str) -> int:
    return length(text(letter))


@event_facet(name="histories.one_at_a_time", limit=Limit("histories", 1))
def one_at_a_time(n: int) -> int:
    return n * 2


@workflow(name="histories.limited")
def limited(n: int) -> int:
    return total(foreach([n, n + 1, n + 2], lambda i: one_at_a_time(i)))


@workflow(name="histories.patient")
def patient(n: int) -> int:
    """Waits for a time, and for an answer that never comes."""
    slept = sleep(300)
    return attempt(
        lambda: add.after(slept)(n, wait_for("more", int, timeout=60)),
        catch=lambda error: add.named("instead")(n, 1),
    )


@workflow(name="histories.research")
async def research(n: int) -> list[Any]:
    """A durable function: a gather, a failure, a timer, a call with a time limit, a child run."""
    found = [await add(n, 1), *await gather(*(add(n, i) for i in range(3)), limit=2)]
    try:
        await refuse(n)
    except Refused as problem:
        found.append(str(problem))
    await sleep(60)
    try:
        async with asyncio.timeout(60):
            await wait_for(f"more {n}", int)
    except TimeoutError:
        found.append("late")
    return [*found, str(uuid()), await third_time(n), await child(n)]


@workflow(name="histories.surveys")
def surveys(numbers: list[int]) -> list[list[Any]]:
    return foreach(numbers, lambda n: research(n))


def _answer(request: ModelRequest) -> Any:
    is_answered = any(message.role == "tool" for message in request.messages)
    if is_answered:
        return "done"
    call = ToolCall("first", "add", {"a": 1, "b": 2})
    return Answer((call,), StopReason.TOOL_CALLS, Usage(10, 5), "scripted")


@agent(name="histories.clerk", model=ScriptedModel(_answer), tools=[add])
def clerk(task: str) -> str:
    """You add numbers."""
    return task


@workflow(name="histories.asked")
def asked(task: str) -> str:
    return clerk(task)


BAKERY = compile_text(
    """
namespace histories {
  event facet Weigh(grams: Long) => (net: Long)

  facet Flour(grams: Long, kind: String = "rye") => (net: Long) andThen {
    weighed = Weigh(grams = $.grams)
    yield Flour(net = weighed.net)
  }

  facet Loaf(size: Long) => (label: String) with Flour(grams = $.size * 100) as flour andThen {
    yield Loaf(label = $.flour.kind ++ " " ++ $.flour.net)
  }

  workflow Bakery(sizes: [Long]) => (labels: [String]) andThen foreach size in $.sizes {
    loaf = Loaf(size = $.size)
    yield Bakery(labels = [loaf.label])
  }
}
"""
)
