"""Claims that wait: a request holds a connection and a place in a queue, and no thread.

Requests for the same facets of a list and tenant wait in one group, first come, first served. When
tasks of the list become due, each group asks once, for its first request, and again as long as
that finds tasks: a hundred waiting agents cost a query for each task, not a hundred.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowengine.engine import Engine
from flowengine.engine.pollers import KNOWN_SECONDS
from flowengine.evaluator import TaskDefinition
from flowengine.event_loop import DaemonThreads
from flowengine.sdk.pace import PollPace
from flowengine.sdk.wire.leases import KnownTasks
from flowengine.sdk.wire.refusals import Refused
from flowengine.store.claims import WorkerIdentity
from flowengine.worker.breakers import CircuitBreakers, TaskPermit

log = logging.getLogger("flowengine")

_POLL_SECONDS = 2.0  # between two queries of a group that nobody notifies, at most
_MAX_GROUPS = 1_000  # without waiting requests, that are kept for their pace
_MAX_REPEATS = 1_000  # requests whose tasks are kept, for a repeated request
_REPEAT_SECONDS = 60.0
_THREADS = 4


@dataclass(frozen=True, slots=True)
class Wanted:
    """The tasks that a request asks for."""

    task_list: str
    facets: tuple[str, ...]
    tenant: str | None


@dataclass(eq=False, slots=True)
class _Waiter:
    identity: WorkerIdentity
    most: int
    ends: float
    is_alive: Callable[[], bool]  #: called in a thread
    answer: asyncio.Future[list[TaskDefinition]]
    is_asking: bool = False


def _pace() -> PollPace:
    return PollPace(_POLL_SECONDS, 2 * KNOWN_SECONDS)


@dataclass(eq=False, slots=True)
class _Group:
    waiters: deque[_Waiter] = field(default_factory=deque)
    pace: PollPace = field(default_factory=_pace)
    is_woken: bool = False
    is_serving: bool = False
    timer: asyncio.TimerHandle | None = None


class Claims:
    """Claims for the requests of one server; all methods but `wake` are called in its loop."""

    def __init__(self, engine: Engine, known: KnownTasks, is_notified: Callable[[], bool]) -> None:
        self._engine, self._known, self._is_notified = engine, known, is_notified
        self._breakers = CircuitBreakers(engine.settings, shares=True)
        self._breakers.obey(engine.breakers)
        self._pool = DaemonThreads(_THREADS, "flowengine-claims")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._groups: OrderedDict[Wanted, _Group] = OrderedDict()
        self._waiting: Counter[str] = Counter()  #: requests by token
        self._repeats: OrderedDict[tuple[str, str], asyncio.Task[list[TaskDefinition]]] = (
            OrderedDict()
        )
        self._serving: set[asyncio.Task[None]] = set()
        self._is_stopping = False

    async def claim(
        self,
        token_id: str,
        identity: WorkerIdentity,
        wanted: Wanted,
        most: int,
        seconds: float,
        gone: asyncio.Event,
        is_alive: Callable[[], bool],
        request_id: str | None,
    ) -> list[TaskDefinition]:
        """Return claimed tasks; none if none became due in that time. Raises Refused.

        `is_alive` says whether the server of a request that has waited still sends heartbeats: a
        connection whose peer is suspended, or behind a dead proxy, looks open.
        """
        self._loop = loop = asyncio.get_running_loop()
        if self._is_stopping:
            raise Refused("stopping", "this server stops")
        key = (identity.boot_id, request_id) if request_id else None
        earlier = self._repeats.get(key) if key is not None else None
        if earlier is not None and (tasks := await asyncio.shield(earlier)):
            return [task for task in tasks if self._known.get((task.uuid, task.lease))]
        if self._waiting[token_id] >= self._engine.settings.max_waiting_claims:
            message = f"{self._waiting[token_id]} claims of this token wait already"
            raise Refused("too_many_claims", message)
        waiting = loop.create_task(
            self._wait(token_id, identity, wanted, most, seconds, gone, is_alive)
        )
        if key is None:
            return await asyncio.shield(waiting)
        self._repeats[key] = waiting
        while len(self._repeats) > _MAX_REPEATS:
            self._repeats.popitem(last=False)
        tasks = []
        try:
            tasks = await asyncio.shield(waiting)
            return tasks
        finally:  # a request without tasks may be repeated
            seconds = _REPEAT_SECONDS if tasks else 0.0
            loop.call_later(seconds, self._forget, key, waiting)

    def _forget(self, key: tuple[str, str], waiting: asyncio.Task[list[TaskDefinition]]) -> None:
        if self._repeats.get(key) is waiting:
            del self._repeats[key]

    async def _wait(
        self,
        token_id: str,
        identity: WorkerIdentity,
        wanted: Wanted,
        most: int,
        seconds: float,
        gone: asyncio.Event,
        is_alive: Callable[[], bool],
    ) -> list[TaskDefinition]:
        loop = asyncio.get_running_loop()
        group = self._groups.setdefault(wanted, _Group())
        self._groups.move_to_end(wanted)
        waiter = _Waiter(identity, most, loop.time() + seconds, is_alive, loop.create_future())
        group.waiters.append(waiter)
        self._waiting[token_id] += 1
        closed = loop.create_task(gone.wait())
        try:
            self._wake(wanted, group)
            # Without a time to wait, the first query of its group answers it.
            timeout = seconds if seconds > 0 else None
            ends: set[asyncio.Future[Any]] = {waiter.answer, closed}
            await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not waiter.answer.done() and not waiter.is_asking:
                group.waiters.remove(waiter)
                return []
            waiter.ends = 0.0  # the query that runs for it is the last
            tasks = await waiter.answer
            if tasks and gone.is_set():
                self.give_back(tasks)
                return []
            return tasks
        finally:
            closed.cancel()
            self._waiting[token_id] -= 1
            if not self._waiting[token_id]:
                del self._waiting[token_id]
            while len(self._groups) > _MAX_GROUPS:
                oldest = next(iter(self._groups))
                if self._groups[oldest].waiters:
                    break
                del self._groups[oldest]

    def give_back(self, tasks: Sequence[TaskDefinition]) -> None:
        """Release tasks whose agent did not get them."""
        keys = [(task.uuid, task.lease) for task in tasks]
        self._known.remove(keys)

        def release() -> None:
            try:
                self._engine.release_held(keys)
            except Exception as problem:
                log.warning(
                    "%d tasks of an agent that has gone were not released: %s; they run "
                    "elsewhere when it sends its next heartbeat, or misses it",
                    len(keys),
                    problem,
                    extra={"action": "release_failed"},
                )

        self._pool.submit(release)

    # --- queries ---

    def wake(self, task_list: str, due: int) -> None:
        """Ask again for requests that wait for this list; without a name, for all. Any thread."""
        if (loop := self._loop) is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake_list, task_list)

    def _wake_list(self, task_list: str) -> None:
        for wanted, group in list(self._groups.items()):
            if group.waiters and task_list in ("", wanted.task_list):
                self._wake(wanted, group)

    def _wake(self, wanted: Wanted, group: _Group) -> None:
        group.is_woken = True
        if not group.is_serving:
            group.is_serving = True
            task = asyncio.get_running_loop().create_task(self._serve(wanted, group))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def _serve(self, wanted: Wanted, group: _Group) -> None:
        loop = asyncio.get_running_loop()
        try:
            while group.is_woken and group.waiters:
                group.is_woken = False
                await self._ask(wanted, group)
                now = loop.time()
                for waiter in [w for w in group.waiters if w.ends <= now or self._is_stopping]:
                    group.waiters.remove(waiter)
                    waiter.answer.set_result([])
        except Exception as problem:
            for waiter in group.waiters:
                waiter.is_asking = False
                waiter.answer.set_exception(problem)
            group.waiters.clear()
        finally:
            group.is_serving = False
            if group.timer is not None:
                group.timer.cancel()
                group.timer = None
            if group.waiters:
                pause = group.pace.pause(is_notified=self._is_notified())
                group.timer = loop.call_later(pause, self._wake, wanted, group)

    async def _ask(self, wanted: Wanted, group: _Group) -> None:
        """Ask for the first request, and as long as there are tasks, for the next one."""
        loop = asyncio.get_running_loop()
        while group.waiters and not self._is_stopping:
            waiter = group.waiters[0]
            waiter.is_asking = True
            tasks = await loop.run_in_executor(self._pool, self._claim, wanted, waiter)
            waiter.is_asking = False
            if tasks is not None and not tasks:
                return
            if tasks:
                group.pace.worked()
            group.waiters.remove(waiter)
            waiter.answer.set_result(tasks or [])

    def _claim(self, wanted: Wanted, waiter: _Waiter) -> list[TaskDefinition] | None:
        """Claim for a request; None: its server is silent, so it gets nothing."""
        if not waiter.is_alive():
            return None
        tasks = self._engine.claim(
            wanted.facets,
            wanted.task_list,
            waiter.identity,
            most=waiter.most,
            tenant=wanted.tenant,
        )
        try:
            return self._permitted(tasks)
        except BaseException:  # nobody would work on them
            self.give_back(tasks)
            raise

    def _permitted(self, tasks: Sequence[TaskDefinition]) -> list[TaskDefinition]:
        """Park the tasks whose circuit breakers are open; return the others."""
        taken: list[TaskDefinition] = []
        parked: dict[str, tuple[float, list[TaskDefinition]]] = {}
        for task in tasks:
            permit: TaskPermit | None = self._breakers.permit(task) if task.circuit else None
            if permit is not None and not permit.granted:
                parked.setdefault(task.circuit, (permit.retry_after, []))[1].append(task)
                continue
            self._known.add(task, permit)
            taken.append(task)
        for circuit, (seconds, refused) in parked.items():
            self._engine.park(refused, circuit, seconds)
        return taken

    def stop(self) -> None:
        """Answer all waiting requests with no tasks, and claim no more."""
        self._is_stopping = True
        for wanted, group in list(self._groups.items()):
            if group.timer is not None:
                group.timer.cancel()
            self._wake(wanted, group)

    def close(self) -> None:
        self._pool.end()
