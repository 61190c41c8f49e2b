"""Actors on one SQLite database, interleaved by a seed: the machinery of simulations.

Every actor is a thread with a database of its own, like a process. Only one of them runs at a
time. It yields between two statements, and the seed alone chooses the next: before a
transaction that may write, after it, and at each statement of one that only reads. (SQLite
has one writer, so nobody is stopped in the middle of writing; but one may die there.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from sqlalchemy import Connection, event

from flowengine.engine import Engine
from flowengine.settings import Settings
from flowengine.store import Session
from flowengine.store.backend import Executor
from flowengine.store.sqlite.database import SqliteDatabase, SqliteExecutor

MOST_SWITCHES = 60_000  #: past this nothing will come any more


class SimulatedWorld(Protocol):
    """One database, and everybody who works on it."""

    url: str
    scheduler: Scheduler
    boots: int  #: processes that have begun

    def clock(self) -> int: ...
    def check(self) -> None:
        """Hold the rows against the laws; called after each commit."""


class Died(SystemExit):
    """The process of an actor is gone, between two statements."""


class Over(SystemExit):
    """The simulation has ended."""


@dataclass(eq=False)
class Actor:
    name: str
    is_mortal: bool
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    is_done: bool = False


class Scheduler:
    """Threads of which one runs at a time; a seed says which."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.trace: list[str] = []
        self.problem: BaseException | None = None
        self._actors: list[Actor] = []
        self._threads: list[threading.Thread] = []
        self._here = threading.local()
        self._end = threading.Event()
        self.is_over = False
        self._is_frozen = False

    def add(self, name: str, act: Callable[[], None], *, is_mortal: bool = False) -> None:
        actor = Actor(name, is_mortal)
        self._actors.append(actor)
        self._threads.append(threading.Thread(target=self._live, args=(actor, act), name=name))

    def play(self) -> None:
        """Run all actors to their ends, and raise what went wrong in one of them."""
        for thread in self._threads:
            thread.start()
        self._next().turn.release()
        assert self._end.wait(60), f"stuck after {self.trace[-20:]}"
        for thread in self._threads:
            thread.join()
        if self.problem is not None:
            raise self.problem

    def switch(self, what: str) -> None:
        """Let an actor run, perhaps this one; this one may never run again."""
        me: Actor | None = getattr(self._here, "actor", None)
        if me is None or self._is_frozen:
            return
        if self.is_over:
            raise Over
        self.trace.append(f"{me.name}: {what}")
        assert len(self.trace) < MOST_SWITCHES, f"no end in sight: {self.trace[-20:]}"
        other = self._next()
        if other is not me:
            other.turn.release()
            me.turn.acquire()
            if self.is_over:
                raise Over
        self.perhaps_die()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let this actor alone run; the others stay where they are, between two transactions."""
        self._is_frozen = True
        try:
            yield
        finally:
            self._is_frozen = False

    def perhaps_die(self) -> None:
        me: Actor | None = getattr(self._here, "actor", None)
        if me is not None and me.is_mortal and self.random.random() < 0.004:
            self.trace.append(f"{me.name}: dies")
            raise Died

    def _live(self, actor: Actor, act: Callable[[], None]) -> None:
        self._here.actor = actor
        actor.turn.acquire()
        try:
            if not self.is_over:
                act()
        except Over:
            pass
        except BaseException as problem:
            self.problem = self.problem or problem
            self.is_over = True
        actor.is_done = True
        if any(not other.is_done for other in self._actors):
            self._next().turn.release()
        else:
            self._end.set()

    def _next(self) -> Actor:
        return self.random.choice([actor for actor in self._actors if not actor.is_done])


class Process(SqliteDatabase):
    """The database as one process sees it."""

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world.url, clock=world.clock)
        self._world = world

        @event.listens_for(self.engine, "connect")
        def _quick(raw: Any, _record: object) -> None:
            raw.execute("PRAGMA synchronous = OFF")  # nobody will cut the power

        @event.listens_for(self.engine, "before_cursor_execute")
        def _between(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
            if connection.get_execution_options().get("flowengine_write"):
                world.scheduler.perhaps_die()
            else:
                world.scheduler.switch(statement.split(" ", 1)[0])

    @contextmanager
    def write(self) -> Iterator[Session]:
        with self._switching("will write"), super().write() as session:
            yield session

    @contextmanager
    def autocommit(self) -> Iterator[Session]:
        with self._switching("will commit operations"), super().autocommit() as session:
            yield session

    @contextmanager
    def optimistic(self) -> Iterator[Session]:
        with self._switching("will commit optimistically"), super().optimistic() as session:
            yield session

    @contextmanager
    def _switching(self, label: str) -> Iterator[None]:
        self._world.scheduler.switch(label)
        yield
        self._world.check()
        self._world.scheduler.switch("has written")

    def session(self, executor: Executor, connection: Connection | None = None) -> Session:
        if isinstance(executor, SqliteExecutor):
            executor = _Interrupted(executor, self._world.scheduler)
        return super().session(executor, connection)


class _Interrupted:
    """An executor whose process may die before any of its statements."""

    def __init__(self, executor: Executor, scheduler: Scheduler) -> None:
        self._executor, self._scheduler = executor, scheduler
        self.atomic, self.channel = executor.atomic, executor.channel

    def rows(self, text: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        self._scheduler.perhaps_die()
        return self._executor.rows(text, parameters)

    def many(self, text: str, rows: Any) -> None:
        self._scheduler.perhaps_die()
        self._executor.many(text, rows)


def reborn(
    world: SimulatedWorld,
    settings: Settings,
    act: Callable[[Engine, str], None],
    died: Callable[[str], None],
) -> Callable[[], None]:
    """An actor that comes back as a new process, with another boot id, whenever it has died."""

    def live() -> None:
        while True:
            world.boots += 1
            boot = f"boot-{world.boots}"
            engine = Engine(Process(world), settings=settings)
            try:
                act(engine, boot)
                return
            except Died:
                died(boot)
            finally:
                engine.close()

    return live
