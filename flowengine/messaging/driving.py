"""Two ways to carry out one plan: from a coroutine, or from ordinary code.

What is to be asked of Redis is written once, as a *plan*: a generator that yields a `Call` or a
`Wait` and is sent the answer. A driver asks, and knows nothing of what it asks for. What Redis did
not do is raised where the plan asked for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from flowengine.messaging.scripting import Script

try:
    from redis.exceptions import NoScriptError, RedisClusterException, RedisError
except ImportError:  # pragma: no cover - depends on what is installed
    raise ImportError("flowengine.messaging needs redis: pip install 'flowengine[redis]'") from None

__all__ = [
    "Argument",
    "AsyncClient",
    "AsyncDriver",
    "Call",
    "Members",
    "Plan",
    "RedisTrouble",
    "SyncClient",
    "SyncDriver",
    "Wait",
    "told",
]

Argument: TypeAlias = str | bytes | int | float

#: What a client raises when Redis did not do something: it said no, or it could not be reached.
RedisTrouble = (RedisError, RedisClusterException)

#: Seconds after which who waits looks again, though nothing has called it.
LOOK_AGAIN = 1.0

#: Seconds that a cancelled plan may take to undo its last step.
UNDO_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Call:
    """Run a script; the answer is what it returns, with texts as bytes."""

    script: Script
    keys: tuple[bytes, ...]
    arguments: tuple[Argument, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until the bell is rung, or for about so many seconds; it may be shorter."""

    bell: bytes
    seconds: float


@dataclass(frozen=True, slots=True)
class Members:
    """The members of a set."""

    key: bytes


Step: TypeAlias = Call | Wait | Members
T = TypeVar("T")
Plan: TypeAlias = Generator[Step, Any, T]


class AsyncClient(Protocol):
    """`redis.asyncio.Redis` or `redis.asyncio.RedisCluster`."""

    def execute_command(self, *args: Any, **kwargs: Any) -> Awaitable[Any]: ...


class SyncClient(Protocol):
    """`redis.Redis` or `redis.RedisCluster`."""

    def execute_command(self, *args: Any, **kwargs: Any) -> Any: ...


class AsyncDriver:
    """Runs plans from coroutines; `before` is awaited before each step.

    A cancelled plan ends with `CancelledError`, also when the client swallows the cancellation.
    redis-py does: it sends each command inside `asyncio.wait_for`, and on Python 3.11 `wait_for`
    returns normally if the cancellation arrives after the bytes are sent but before the waiting
    task has resumed. Only `Task.cancelling()` still shows it, so it is compared after each await.
    A wait, which takes longer than other commands, has a task of its own: see `_interruptible`.
    """

    def __init__(
        self, redis: AsyncClient, before: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._redis = redis
        self._patience = _patience(redis)
        self._before = before

    async def run(self, plan: Plan[T]) -> T:
        # A task that cleans up after its own cancellation has a count above zero already.
        at_entry = _cancellations()
        answer: Any = None
        trouble: Exception | None = None
        while True:
            try:
                step = plan.send(answer) if trouble is None else plan.throw(trouble)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            try:
                try:
                    answer, trouble = await self._ask(step), None
                except RedisTrouble as error:
                    trouble = error
                if _cancellations() > at_entry:
                    raise asyncio.CancelledError
            except asyncio.CancelledError as cancelled:
                await self._undo(plan, cancelled)
                raise

    async def _undo(self, plan: Plan[T], cancelled: asyncio.CancelledError) -> None:
        """Run the one step, if any, that the plan yields when it is cancelled.

        In a task of its own, so that a second cancellation does not stop it, and with a time limit,
        so that a Redis that does not respond cannot block the cancellation.
        """
        try:
            step = plan.throw(cancelled)
        except (asyncio.CancelledError, StopIteration):
            return

        async def ask() -> None:
            with suppress(*RedisTrouble):  # the reservation or lease expires by itself
                await self._ask(step)

        undo = asyncio.create_task(ask())
        await asyncio.wait({undo}, timeout=UNDO_SECONDS)
        undo.cancel()

    async def _ask(self, step: Step) -> Any:
        if self._before is not None:
            await self._before()
        ask = self._redis.execute_command
        if isinstance(step, Call):
            try:
                return await ask(*_by_hash(step), NEVER_DECODE=True)
            except NoScriptError:
                return await ask(*_by_text(step), NEVER_DECODE=True)
        response = ask(*_plainly(step, self._patience), NEVER_DECODE=True)
        return await (_interruptible(response) if isinstance(step, Wait) else response)


class SyncDriver:
    """Carries out plans from ordinary code; threads may share one."""

    def __init__(self, redis: SyncClient) -> None:
        self._redis = redis
        self._patience = _patience(redis)

    def run(self, plan: Plan[T]) -> T:
        answer: Any = None
        trouble: Exception | None = None
        while True:
            try:
                step = plan.send(answer) if trouble is None else plan.throw(trouble)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            try:
                answer, trouble = self._ask(step), None
            except RedisTrouble as error:
                trouble = error

    def _ask(self, step: Step) -> Any:
        ask = self._redis.execute_command
        if isinstance(step, Call):
            try:
                return ask(*_by_hash(step), NEVER_DECODE=True)
            except NoScriptError:
                return ask(*_by_text(step), NEVER_DECODE=True)
        return ask(*_plainly(step, self._patience), NEVER_DECODE=True)


def told(error: Exception) -> str:
    """What Redis did not do, in its own words: they may be empty, the class never is."""
    return f"{type(error).__name__}: {error}"


async def _interruptible(awaitable: Awaitable[T]) -> T:
    """Await in a child task: a cancellation of the caller cannot be swallowed by `awaitable`."""
    child = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait({child})
    except asyncio.CancelledError:
        for _ in range(100):  # the client may swallow the first of them
            child.cancel()
            await asyncio.wait({child}, timeout=0.01)
            if child.done():
                break
        if child.done() and not child.cancelled():
            child.exception()  # retrieved: asyncio would log it otherwise
        raise
    return child.result()


def _cancellations() -> int:
    """The number of cancellation requests of the current task."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _by_hash(call: Call) -> tuple[Argument, ...]:
    return ("EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.arguments)


def _by_text(call: Call) -> tuple[Argument, ...]:
    return ("EVAL", call.script.text, len(call.keys), *call.keys, *call.arguments)


def _plainly(step: Wait | Members, patience: float) -> tuple[Argument, ...]:
    if isinstance(step, Members):
        return ("SMEMBERS", step.key)
    # Zero would be for ever.
    return ("BLPOP", step.bell, max(min(step.seconds, patience), 0.001))


def _patience(redis: object) -> float:
    """How long one wait may take before the client itself would call it a lost connection."""
    pool = getattr(redis, "connection_pool", None)
    options = getattr(pool, "connection_kwargs", None)
    if options is None and hasattr(redis, "get_connection_kwargs"):
        options = redis.get_connection_kwargs()
    timeout = (options or {}).get("socket_timeout")
    return LOOK_AGAIN if not timeout else min(LOOK_AGAIN, timeout / 2)
