"""Drivers run a plan against Redis, from a coroutine or from synchronous code.

A *plan* is a generator that yields steps (`Call`, `Wait`, `Members`) and is sent their responses,
so each operation is written once for both kinds of client. An error of Redis is raised at the
`yield`.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from flowengine.errors import MessageCoordinatorError
from flowengine.messaging.lua import Argument, Call

try:
    from redis.asyncio import ConnectionPool, Redis
    from redis.exceptions import NoScriptError, RedisClusterException, RedisError
except ImportError:  # pragma: no cover - depends on what is installed
    raise ImportError("flowengine.messaging needs redis: pip install 'flowengine[redis]'") from None

#: Raised by a client if Redis refused a command or was unreachable.
RedisErrors = (RedisError, RedisClusterException)

#: Longest wait in seconds: a receiver whose wake-up was lost looks again after it.
POLL_SECONDS = 1.0

#: Time limit in seconds for a cancelled plan to undo its last step.
UNDO_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for an element in the list `key`, at most `seconds`; the wait may end earlier."""

    key: bytes
    seconds: float


@dataclass(frozen=True, slots=True)
class Members:
    """Read the members of a set."""

    key: bytes


Step: TypeAlias = Call | Wait | Members
T = TypeVar("T")
P = ParamSpec("P")
Operation = TypeVar("Operation", bound=Callable[..., Any])
Plan: TypeAlias = Generator[Step, Any, T]


class AsyncClient(Protocol):
    """`redis.asyncio.Redis` or `redis.asyncio.RedisCluster`."""

    def execute_command(self, *args: Any, **kwargs: Any) -> Awaitable[Any]: ...


class SyncClient(Protocol):
    """`redis.Redis` or `redis.RedisCluster`."""

    def execute_command(self, *args: Any, **kwargs: Any) -> Any: ...


class AsyncDriver:
    """Runs plans from coroutines; `before` is awaited before each step.

    A cancelled plan ends with `CancelledError`, also if the client swallows the cancellation.
    redis-py does: it sends each command inside `asyncio.wait_for`, and on Python 3.11 `wait_for`
    returns normally if the cancellation arrives after the bytes are sent but before the waiting
    task has resumed. Only `Task.cancelling()` still shows it, so it is compared after each await.
    A wait takes longer than other commands and therefore has a task of its own: `_interruptible`.
    """

    def __init__(
        self, redis: AsyncClient, before: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._redis = redis
        self._max_wait = _max_wait(redis)
        self._before = before

    async def run(self, plan: Plan[T]) -> T:
        # A task that cleans up after its own cancellation has a count above zero already.
        at_entry = _cancellations()
        response: Any = None
        failure: Exception | None = None
        while True:
            try:
                step = plan.send(response) if failure is None else plan.throw(failure)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            try:
                try:
                    response, failure = await self._execute(step), None
                except RedisErrors as error:
                    failure = error
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

        async def execute() -> None:
            with suppress(*RedisErrors):  # the reservation or lease expires
                await self._execute(step)

        undo = asyncio.create_task(execute())
        await asyncio.wait({undo}, timeout=UNDO_SECONDS)
        undo.cancel()

    async def _execute(self, step: Step) -> Any:
        if self._before is not None:
            await self._before()
        execute = self._redis.execute_command
        if isinstance(step, Call):
            try:
                return await execute(*_evalsha(step), NEVER_DECODE=True)
            except NoScriptError:
                return await execute(*_eval(step), NEVER_DECODE=True)
        response = execute(*_command(step, self._max_wait), NEVER_DECODE=True)
        return await (_interruptible(response) if isinstance(step, Wait) else response)


class SyncDriver:
    """Runs plans from synchronous code; threads may share one."""

    def __init__(self, redis: SyncClient) -> None:
        self._redis = redis
        self._max_wait = _max_wait(redis)

    def run(self, plan: Plan[T]) -> T:
        response: Any = None
        failure: Exception | None = None
        while True:
            try:
                step = plan.send(response) if failure is None else plan.throw(failure)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            try:
                response, failure = self._execute(step), None
            except RedisErrors as error:
                failure = error

    def _execute(self, step: Step) -> Any:
        execute = self._redis.execute_command
        if isinstance(step, Call):
            try:
                return execute(*_evalsha(step), NEVER_DECODE=True)
            except NoScriptError:
                return execute(*_eval(step), NEVER_DECODE=True)
        return execute(*_command(step, self._max_wait), NEVER_DECODE=True)


class PrivateLoopDriver:
    """Runs plans over an asynchronous client from synchronous code, in its own loop and thread.

    The connections of an asynchronous client belong to the loop that opened them, so this driver
    opens its own with the same options.
    """

    def __init__(self, redis: Redis) -> None:
        pool = redis.connection_pool
        self._redis = Redis(
            connection_pool=ConnectionPool(pool.connection_class, **pool.connection_kwargs)
        )
        self._driver = AsyncDriver(self._redis)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="flowengine-registry-loop", daemon=True
        )
        self._thread.start()

    def run(self, plan: Plan[T]) -> T:
        return asyncio.run_coroutine_threadsafe(self._driver.run(plan), self._loop).result()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()


def asynchronous(
    plan: Callable[Concatenate[Any, P], Plan[T]], action: str = ""
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A method that runs a plan of `self._plans`; `action` describes it in errors."""

    @wraps(plan)
    async def operation(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        driver: AsyncDriver = self._driver
        try:
            return await driver.run(plan(self._plans, *args, **kwargs))
        except RedisErrors as error:
            if not action:
                raise
            raise _failure(plan, action, args, kwargs, error) from error

    return _described(operation, plan)


def synchronous(
    plan: Callable[Concatenate[Any, P], Plan[T]], action: str = ""
) -> Callable[Concatenate[Any, P], T]:
    """`asynchronous` for synchronous code."""

    @wraps(plan)
    def operation(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        driver: SyncDriver = self._driver
        try:
            return driver.run(plan(self._plans, *args, **kwargs))
        except RedisErrors as error:
            if not action:
                raise
            raise _failure(plan, action, args, kwargs, error) from error

    return _described(operation, plan)


def _described(operation: Operation, plan: Callable[..., Any]) -> Operation:
    """Have `help` show the result of a plan as that of its operation."""
    signature = inspect.signature(plan)
    result = str(signature.return_annotation).removeprefix("Plan[").removesuffix("]")
    operation.__annotations__ = {**plan.__annotations__, "return": result}
    operation.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
    return operation


def _failure(
    plan: Callable[..., Any], action: str, args: Any, kwargs: Any, error: Exception
) -> MessageCoordinatorError:
    arguments = inspect.signature(plan).bind(None, *args, **kwargs).arguments
    return MessageCoordinatorError(action.format(**arguments), describe(error))


def describe(error: Exception) -> str:
    """The class and the message of an error; the message alone may be empty."""
    return f"{type(error).__name__}: {error}"


async def _interruptible(awaitable: Awaitable[T]) -> T:
    """Await in a child task: a cancellation of the caller cannot be swallowed by `awaitable`."""
    child = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait({child})
    except asyncio.CancelledError:
        for _ in range(100):  # the client may swallow the first cancellation
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


def _evalsha(call: Call) -> tuple[Argument, ...]:
    return ("EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.arguments)


def _eval(call: Call) -> tuple[Argument, ...]:
    return ("EVAL", call.script.text, len(call.keys), *call.keys, *call.arguments)


def _command(step: Wait | Members, max_wait: float) -> tuple[Argument, ...]:
    if isinstance(step, Members):
        return ("SMEMBERS", step.key)
    # BLPOP with 0 would block without a limit.
    return ("BLPOP", step.key, max(min(step.seconds, max_wait), 0.001))


def _max_wait(redis: object) -> float:
    """Seconds; below the client's socket timeout, which would otherwise end the connection."""
    pool = getattr(redis, "connection_pool", None)
    options = getattr(pool, "connection_kwargs", None)
    if options is None and hasattr(redis, "get_connection_kwargs"):
        options = redis.get_connection_kwargs()
    timeout = (options or {}).get("socket_timeout")
    return POLL_SECONDS if not timeout else min(POLL_SECONDS, timeout / 2)
