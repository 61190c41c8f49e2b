"""Random bodies of durable functions: scripts as JSON, and the function that follows them."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import strategies as st

from flowengine import event_facet
from flowengine.authoring.functions import acall, changed, gather, now, random, sleep, uuid


class Refused(ValueError):
    pass


@event_facet
def alpha(n: int) -> int:
    return n


@event_facet
def beta(n: int, text: str = "") -> str:
    return f"{n}{text}"


_leaves = st.one_of(
    st.tuples(st.just("alpha"), st.integers(0, 9)),
    st.tuples(st.just("beta"), st.integers(0, 9)),
    st.tuples(st.just("sleep"), st.integers(0, 5)),
    st.sampled_from([("derived",), ("changed", "x"), ("changed", "y"), ("turn",), ("raise",)]),
)


def _bodies(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=4)
    together = ("gather", "settled", "limited", "group", "race", "sequence", "queue")
    return st.one_of(
        st.tuples(st.sampled_from(together), several),
        st.tuples(st.just("timeout"), st.integers(0, 20), inner),
        st.tuples(st.sampled_from(["except", "finally"]), inner, inner),
        st.tuples(st.sampled_from(["loop", "retry"]), st.integers(1, 3), inner),
        st.tuples(st.just("background"), inner, inner),
    )


_parts = _bodies(_leaves | _bodies(_leaves))
#: Scripts; each is a list with the name of a construct and its parts.
scripts = st.tuples(
    st.sampled_from(["sequence", "gather", "settled", "group", "race"]),
    st.lists(_parts, min_size=2, max_size=4),
)


_calls = st.one_of(
    st.tuples(st.sampled_from(["alpha", "beta"]), st.integers(0, 9)),
    st.sampled_from([("changed", "x"), ("turn",)]),
)


def _without_races(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Bodies that wait for all they begin: the order of the ends changes no call and no result."""
    return st.one_of(
        st.tuples(
            st.sampled_from(["settled", "sequence"]), st.lists(inner, min_size=1, max_size=4)
        ),
        st.tuples(
            st.sampled_from(["gather", "limited", "group"]),
            st.lists(_calls, min_size=1, max_size=4),
        ),
        st.tuples(st.sampled_from(["except", "finally"]), inner, inner),
        st.tuples(st.sampled_from(["loop", "retry"]), st.integers(1, 3), inner),
    )


_steps = _calls | st.just(("raise",))
#: Scripts whose result and calls do not depend on the order in which calls end.
scripts_without_races = st.tuples(
    st.sampled_from(["sequence", "settled"]),
    st.lists(_without_races(_steps | _without_races(_steps)), min_size=2, max_size=4),
)


async def follow(script: Any) -> Any:
    """Run a script; return a value that follows from everything it saw."""
    match script:
        case ["alpha", n]:
            return await acall(alpha, n)
        case ["beta", n]:
            return await acall(beta, n, text=str(n))
        case ["sleep", seconds]:
            if seconds % 2:
                return (await sleep(seconds)).isoformat()
            return await asyncio.sleep(seconds, "slept")
        case ["derived"]:
            return await acall(beta, int(random() * 1000), f"{uuid()} {uuid()} {now()}")
        case ["changed", name]:
            return await acall(alpha, 7) if changed(name) else await acall(beta, 7)
        case ["turn"]:
            return await asyncio.sleep(0, "turn")
        case ["raise"]:
            raise Refused("raised")
        case ["gather", parts]:
            return await asyncio.gather(*map(follow, parts))
        case ["settled", parts]:
            found = await asyncio.gather(*map(follow, parts), return_exceptions=True)
            return [repr(one) for one in found]
        case ["limited", parts]:
            return await gather(*map(follow, parts), limit=2)
        case ["group", parts]:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(follow(part)) for part in parts]
            return [task.result() for task in tasks]
        case ["race", parts]:
            racing = {asyncio.create_task(follow(part)) for part in parts}
            done, pending = await asyncio.wait(racing, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:  # in the order of a set
                task.cancel()
                await acall(alpha, int(task.get_name().partition("-")[2]))
            await asyncio.gather(*pending, return_exceptions=True)
            return [task.result() for task in done]
        case ["sequence", parts]:
            last: Any = None
            return [last := [await follow(part), last and str(last)[:9]] for part in parts]
        case ["queue", parts]:
            return await _queued(parts)
        case ["timeout", seconds, part]:
            try:
                async with asyncio.timeout(seconds):
                    return await follow(part)
            except TimeoutError:
                return "late"
        case ["except", part, handler]:
            try:
                return await follow(part)
            except* Exception as problems:
                names = sorted(type(one).__name__ for one in problems.exceptions)
            return [names, await follow(handler)]
        case ["finally", part, final]:
            try:
                return await follow(part)
            finally:
                await follow(final)
        case ["loop", count, part]:
            return [await follow(part) for _ in range(count)]
        case ["retry", count, part]:
            for _ in range(count):
                try:
                    return await follow(part)
                except ValueError as problem:
                    found = str(problem)
            return found
        case ["background", part, other]:
            task = asyncio.create_task(follow(part))
            first = await follow(other)
            return [first, await task if first != "late" else None]
    raise AssertionError(script)


async def _queued(parts: list[Any]) -> list[Any]:
    queue, found, places = asyncio.Queue[Any](1), list[Any](), asyncio.Semaphore(2)

    async def produce(part: Any) -> None:
        async with places:
            await queue.put(await follow(part))

    async def consume() -> None:
        for _ in parts:
            found.append(await queue.get())

    async with asyncio.TaskGroup() as group:
        group.create_task(consume())
        for part in parts:
            group.create_task(produce(part))
    return found
