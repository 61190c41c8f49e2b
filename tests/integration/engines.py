"""Engines and small programs for the tests of the store and the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import Connection

from flowengine.dispatch import Notifier
from flowengine.engine import Engine
from flowengine.evaluator import TaskDefinition
from flowengine.program.nodes import (
    Argument,
    Block,
    Call,
    EventOptions,
    Expression,
    FacetDeclaration,
    FacetKind,
    Field,
    InputRef,
    Literal,
    Namespace,
    Program,
    StepRef,
    StepStatement,
    YieldStatement,
)
from flowengine.settings import Settings
from flowengine.store import Database, Session, ensure_schema
from flowengine.store.backend import Executor, SqlalchemyExecutor
from flowengine.store.claims import WorkerIdentity
from flowengine.store.database import Clock
from flowengine.store.postgres.executors import PipelineExecutor
from flowengine.store.tables import metadata

# --- engines ---


class MovedClock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


def replace_notifier(engine: Engine, notifier: Notifier) -> None:
    """Let all parts of an engine use another notifier, for one that needs the engine itself."""
    engine.notifier = notifier
    for part in (engine.after_commit, engine.starter, engine.queue):
        part._notifier = notifier


@contextmanager
def opened(
    url: str,
    *,
    clock: Clock | None = None,
    notifier: Notifier | None = None,
    settings: Settings | None = None,
    schema: str = "",
) -> Iterator[Engine]:
    """An engine of its own on a database, closed at the end."""
    database = Database(url, schema=schema, clock=clock)
    ensure_schema(database, upgrade=True)
    engine = Engine(database, notifier=notifier, settings=settings)
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def watched(engine: Engine, notice: Callable[[str, Any], object]) -> Iterator[None]:
    """Pass each statement that goes to the driver past SQLAlchemy to `notice` before it runs."""
    database: Any = engine.database
    session = database.session

    def noticing(executor: Executor, connection: Connection | None = None) -> Session:
        if isinstance(executor, PipelineExecutor):
            for name in ("rows", "send"):
                setattr(executor, name, _noticed(getattr(executor, name), notice))
        elif not isinstance(executor, SqlalchemyExecutor):  # its statements have an event
            executor = _Watched(executor, notice)
        return session(executor, connection)

    database.session = noticing
    try:
        yield
    finally:
        del database.session


def _noticed(execute: Callable[..., Any], notice: Callable[[str, Any], object]) -> Any:
    def first(text: str, parameters: Any = ()) -> Any:
        notice(text, parameters)
        return execute(text, parameters)

    return first


class _Watched:
    def __init__(self, executor: Executor, notice: Callable[[str, Any], object]) -> None:
        self.rows = _noticed(executor.rows, notice)
        self.many = _noticed(executor.many, notice)
        self.atomic, self.channel = executor.atomic, executor.channel


def cut_off(engine: Engine) -> None:
    """Have PostgreSQL end every connection to the database but the one that asks for it."""
    url = engine.database.url.set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False)) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def claim(engine: Engine, name: str = "t.Work") -> TaskDefinition:
    """Claim one task that must be there."""
    (task,) = engine.claim([name], "default", WorkerIdentity(), most=1)
    return task


Dump = dict[str, list[tuple[Any, ...]]]
_ALL = [
    (name, f"SELECT * FROM {name} ORDER BY {', '.join(c.name for c in table.primary_key)}")
    for name, table in sorted(metadata.tables.items())
]


def dump(engine: Engine) -> Dump:
    """Everything the database holds: every row of every table."""
    with engine.database.read() as session:
        return dump_of(session.connection)


def dump_of(connection: Connection) -> Dump:
    # As text: each engine of a test would compile forty queries anew.
    return {name: [tuple(row) for row in connection.exec_driver_sql(query)] for name, query in _ALL}


def counts(found: Dump) -> dict[str, int]:
    """How many rows the tables hold that hold any."""
    return {name.removeprefix("flowengine_"): len(rows) for name, rows in found.items() if rows}


# --- programs ---


def call(name: str, facet: str, /, **arguments: Expression) -> StepStatement:
    return StepStatement(name, Call(facet, tuple(Argument(n, v) for n, v in arguments.items())))


def event_facet(name: str, options: EventOptions | None = None) -> FacetDeclaration:
    """An event facet from anything to anything: ``name(x) => (y)``."""
    return FacetDeclaration(
        FacetKind.EVENT,
        name,
        params=(Field("x"),),
        returns=(Field("y"),),
        options=options or EventOptions(),
    )


def workflow(
    steps: Sequence[StepStatement], yields: Mapping[str, Expression], name: str = "Flow"
) -> FacetDeclaration:
    """A workflow ``name(x) => (…)`` with these steps."""
    given = tuple(Argument(n, value) for n, value in yields.items())
    return FacetDeclaration(
        FacetKind.WORKFLOW,
        name,
        params=(Field("x", default=Literal(None)),),
        returns=tuple(Field(n) for n in yields),
        body=(Block(tuple(steps), (YieldStatement(Call(name, given)),)),),
    )


def program(*declarations: FacetDeclaration, namespace: str = "t") -> Program:
    return Program((Namespace(namespace, declarations=declarations),))


X = InputRef(("x",))


def one(options: EventOptions | None = None) -> Program:
    """One event: ``a = Work($.x)``, whose result is the output ``y``."""
    return program(
        event_facet("Work", options), workflow([call("a", "Work", x=X)], {"y": StepRef(("a", "y"))})
    )


def chain(*names: str) -> Program:
    """One event after the other; each gives its result to the next."""
    values: list[Expression] = [X, *(StepRef((name, "y")) for name in names)]
    steps = [call(name, "Work", x=value) for name, value in zip(names, values, strict=False)]
    return program(event_facet("Work"), workflow(steps, {"y": values[-1]}))


def side_by_side(*names: str) -> Program:
    """Events that know nothing of each other; the output has the result of each."""
    steps = [call(name, "Work", x=Literal(name)) for name in names]
    return program(event_facet("Work"), workflow(steps, {n: StepRef((n, "y")) for n in names}))
