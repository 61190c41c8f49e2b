"""Does completing a step cost the same in a small run and in a large one?

Law 7 of the design: cost follows change. This drives runs of several shapes and of growing
sizes through the engine as a worker would, one task at a time, and counts what each
completed step costs: statements sent to the database, rows fetched from it and, on SQLite,
instructions of its virtual machine, which show a missing index even while it is fast. The
counts are the same on every machine; `tests/integration/test_growth.py` holds them.

    PYTHONPATH=. python benchmarks/growth.py --size 100 --size 1000 --url postgresql://…
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from sqlalchemy import Connection, event

from flowengine.engine import Engine
from flowengine.evaluator import RunState
from flowengine.evaluator.triggers import Succeeded
from flowengine.program.nodes import (
    Argument,
    ArrayLiteral,
    ArrayType,
    Binary,
    Block,
    Call,
    Expression,
    FacetDeclaration,
    FacetKind,
    Field,
    ForeachClause,
    InputRef,
    Literal,
    Namespace,
    Program,
    StepRef,
    StepStatement,
    WhenCase,
    YieldStatement,
)
from flowengine.store import Database, Session, ensure_schema
from flowengine.store.backend import Executor
from flowengine.store.claims import WorkerIdentity

SIZES = (100, 1_000, 10_000)
#: Instructions after which SQLite calls us back. Fewer would count more finely, and slower.
INSTRUCTIONS = 20

# --- shapes ---

_EVENTS = (
    FacetDeclaration(
        FacetKind.EVENT, "Work", params=(Field("x", "Long"),), returns=(Field("y", "Long"),)
    ),
    FacetDeclaration(
        FacetKind.EVENT,
        "Join",
        params=(Field("xs", ArrayType("Long")),),
        returns=(Field("y", "Long"),),
    ),
)


@dataclass(frozen=True)
class Shape:
    """A program of a size, its inputs, and how many event steps it takes to its end."""

    program: Program
    inputs: Mapping[str, Any]
    steps: int


def chain(size: int) -> Shape:
    """One event after the other, each given the result of the one before."""
    first = _step("s0", "Work", x=InputRef(("x",)))
    rest = [_step(f"s{i}", "Work", x=StepRef((f"s{i - 1}", "y"))) for i in range(1, size)]
    block = Block((first, *rest), _yield(y=StepRef((f"s{size - 1}", "y"))))
    return Shape(_program(block), {"x": 0}, size)


def join(size: int) -> Shape:
    """Events side by side, whose results are all read by one joining event."""
    steps = [_step(f"s{i}", "Work", x=Literal(i)) for i in range(size)]
    results = ArrayLiteral(tuple(StepRef((f"s{i}", "y")) for i in range(size)))
    joining = _step("all", "Join", xs=results)
    return Shape(_program(Block((*steps, joining), _yield(y=StepRef(("all", "y"))))), {}, size + 1)


def foreach(size: int) -> Shape:
    """A list, two events for each of its items, and an event that joins their results."""
    items = Block(
        (_step("a", "Work", x=InputRef(("i",))), _step("b", "Work", x=StepRef(("a", "y")))),
        _yield("Each", ys=ArrayLiteral((StepRef(("b", "y")),))),
        foreach=ForeachClause("i", InputRef(("xs",))),
    )
    each = FacetDeclaration(
        FacetKind.FACET,
        "Each",
        params=(Field("xs", ArrayType("Long")),),
        returns=(Field("ys", ArrayType("Long")),),
        body=(items,),
    )
    body = Block(
        (
            _step("each", "Each", xs=InputRef(("xs",))),
            _step("all", "Join", xs=StepRef(("each", "ys"))),
        ),
        _yield(y=StepRef(("all", "y"))),
    )
    return Shape(_program(body, each), {"xs": list(range(size))}, 2 * size + 1)


def nested(size: int) -> Shape:
    """A square of events: a facet goes over rows, and for each a facet over its items."""
    side = isqrt(size)
    over = ForeachClause("i", InputRef(("xs",)))
    row = Block(
        (_step("a", "Work", x=InputRef(("i",))),),
        _yield("Row", ys=ArrayLiteral((StepRef(("a", "y")),))),
        foreach=over,
    )
    rows = Block(
        (_step("row", "Row", xs=InputRef(("xs",))),),
        _yield("Rows", ys=StepRef(("row", "ys"))),
        foreach=over,
    )
    body = Block(
        (
            _step("rows", "Rows", xs=InputRef(("xs",))),
            _step("all", "Join", xs=StepRef(("rows", "ys"))),
        ),
        _yield(y=StepRef(("all", "y"))),
    )
    facets = (_list_facet("Row", row), _list_facet("Rows", rows))
    return Shape(_program(body, *facets), {"xs": list(range(side))}, side * side + 1)


def _list_facet(name: str, block: Block) -> FacetDeclaration:
    params, returns = (Field("xs", ArrayType("Long")),), (Field("ys", ArrayType("Long")),)
    return FacetDeclaration(FacetKind.FACET, name, params, returns, body=(block,))


def recursion(size: int) -> Shape:
    """A facet that calls itself, with an event at each level; all levels begin and end at once."""
    n, one = InputRef(("n",)), Literal(1)
    return _levels(size, Binary("-", n, one))


def rounds(size: int) -> Shape:
    """A loop: each level begins when the event of the level before has ended."""
    return _levels(size, Binary("-", StepRef(("work", "y")), Literal(2)))


def _levels(size: int, next_n: Expression) -> Shape:
    n, one = InputRef(("n",)), Literal(1)
    deeper = WhenCase(
        Binary(">", n, one),
        (_step("work", "Work", x=n), _step("down", "Down", n=next_n)),
        # The event gives n + 1.
        _yield(
            "Down", y=Binary("+", StepRef(("down", "y")), Binary("-", StepRef(("work", "y")), n))
        ),
    )
    deepest = WhenCase(
        None, (_step("work", "Work", x=Literal(0)),), _yield("Down", y=StepRef(("work", "y")))
    )
    down = FacetDeclaration(
        FacetKind.FACET,
        "Down",
        (Field("n", "Long"),),
        (Field("y", "Long"),),
        body=(Block(cases=(deeper, deepest)),),
    )
    body = Block((_step("down", "Down", n=InputRef(("x",))),), _yield(y=StepRef(("down", "y"))))
    return Shape(_program(body, down), {"x": size}, size)


SHAPES: dict[str, Callable[[int], Shape]] = {
    "chain": chain,
    "join": join,
    "foreach": foreach,
    "nested": nested,
    "recursion": recursion,
    "rounds": rounds,
}


def _step(name: str, facet: str, **arguments: Any) -> StepStatement:
    given = tuple(Argument(n, value) for n, value in arguments.items())
    return StepStatement(name, Call(facet, given))


def _yield(target: str = "Flow", /, **attributes: Any) -> tuple[YieldStatement, ...]:
    given = tuple(Argument(n, value) for n, value in attributes.items())
    return (YieldStatement(Call(target, given)),)


def _program(body: Block, *more: FacetDeclaration) -> Program:
    params = (
        Field("x", "Long", default=Literal(0)),
        Field("xs", ArrayType("Long"), default=Literal([])),
    )
    flow = FacetDeclaration(
        FacetKind.WORKFLOW, "Flow", params=params, returns=(Field("y", "Long"),), body=(body,)
    )
    return Program((Namespace("growth", declarations=(*_EVENTS, *more, flow)),))


# --- counting ---


@dataclass
class Counts:
    """Statements sent to the database, and rows that it returned."""

    statements: int = 0
    written: int = 0  #: sets of parameters: rows, for a statement that writes many
    rows: int = 0
    instructions: int = 0  #: of SQLite's virtual machine

    def watch(self, database: Database) -> None:
        """Count all that this database does from now on."""
        engine = database.engine
        engine.dispose()  # connections are watched from their beginning

        @event.listens_for(engine, "before_cursor_execute")
        def _statement(_c: Any, _cursor: Any, _sql: str, given: Any, _x: Any, many: bool) -> None:
            self.statements += 1
            self.written += len(given) if many else 1

        session = database.session

        def counting(executor: Executor, connection: Connection | None = None) -> Session:
            if connection is None:  # others go through SQLAlchemy, which has events
                executor = _Counting(executor, self)
            return session(executor, connection)

        database.session = counting  # type: ignore[method-assign]

        @event.listens_for(engine, "connect")
        def _connected(raw: Any, _record: Any) -> None:
            # The driver makes each row that it returns with this.
            if not database.has_server:
                raw.row_factory = lambda _cursor, row: self._row(row)
                raw.set_progress_handler(self._instructions, INSTRUCTIONS)
            else:
                raw.row_factory = lambda _cursor: lambda values: self._row(tuple(values))

    def _row(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        self.rows += 1
        return row

    def _instructions(self) -> int:
        self.instructions += INSTRUCTIONS
        return 0  # go on


class _Counting:
    """Executes as another does, and counts."""

    def __init__(self, executor: Executor, counts: Counts) -> None:
        self._executor, self._counts = executor, counts
        self.atomic, self.channel = executor.atomic, executor.channel

    def rows(self, text: str, given: Any = ()) -> list[tuple[Any, ...]]:
        self._counts.statements += 1
        values = given.values() if isinstance(given, Mapping) else given
        # PostgreSQL is given the rows of a section as a list of JSON.
        lists = [json.loads(v) for v in values if isinstance(v, str) and v.startswith("[{")]
        self._counts.written += sum(map(len, lists)) or 1
        return self._executor.rows(text, given)

    def many(self, text: str, given: Any) -> None:
        self._counts.statements += 1
        self._counts.written += len(given)
        self._executor.many(text, given)


@dataclass(frozen=True)
class Growth:
    """The average cost of a completed step of a run."""

    size: int
    statements: float
    written: float
    rows: float
    instructions: float
    ms: float


def measure(engine: Engine, counts: Counts, shape: Shape, size: int) -> Growth:
    """Drive a run from its start to its end, one task at a time."""
    before = Counts(**vars(counts))
    begun = time.perf_counter()
    run = engine.start(shape.program, "Flow", shape.inputs)
    done = 0
    while claimed := engine.claim(
        ["growth.Work", "growth.Join"], "default", WorkerIdentity(), most=1
    ):
        for task in claimed:
            assert task.data is not None
            result = task.data["x"] + 1 if "x" in task.data else len(task.data["xs"])
            assert engine.report(task, Succeeded({"y": result}))
            done += 1
    elapsed = time.perf_counter() - begun
    per_step = [(v - getattr(before, n)) / shape.steps for n, v in list(vars(counts).items())]
    info = engine.get(run.id)
    assert info.state == RunState.COMPLETED, info.error_text
    assert info.outputs == {"y": size}
    assert done == shape.steps
    return Growth(size, *per_step, ms=elapsed / shape.steps * 1000)


@contextmanager
def counted_engine(url: str) -> Iterator[tuple[Engine, Counts]]:
    """An engine on a database at the newest schema, and the counts of its statements."""
    database, counts = Database(url), Counts()
    ensure_schema(database, upgrade=True)
    counts.watch(database)
    with closing(Engine(database)) as engine:
        yield engine, counts


# --- report ---


@click.command()
@click.option("--size", "sizes", type=int, multiple=True, default=SIZES, show_default=True)
@click.option("--shape", "shapes", type=click.Choice(list(SHAPES)), multiple=True, default=SHAPES)
@click.option("--url", help="An empty PostgreSQL database, measured after SQLite.")
def main(sizes: tuple[int, ...], shapes: tuple[str, ...], url: str | None) -> None:
    """Print the cost of a completed step in runs of growing size."""
    with tempfile.TemporaryDirectory() as directory:
        for found in [f"sqlite:///{Path(directory) / 'growth.db'}", *([url] if url else [])]:
            _print_table(found, sizes, shapes)


def _print_table(url: str, sizes: tuple[int, ...], shapes: tuple[str, ...]) -> None:
    with counted_engine(url) as (engine, counts):
        is_sqlite = not engine.database.has_server
        titles = ["statements", "writes", "rows", *(["instructions"] if is_sqlite else []), "ms"]
        table = Table(title=f"per completed step, {engine.database.engine.dialect.name}")
        table.add_column("shape")
        for title in ["N", *titles]:
            table.add_column(title, justify="right")
        for name in shapes:
            for size in sizes:
                found = measure(engine, counts, SHAPES[name](size), size)
                cells = [f"{found.statements:.2f}", f"{found.written:.2f}", f"{found.rows:.2f}"]
                cells += [f"{found.instructions:.0f}"] if is_sqlite else []
                table.add_row(name, f"{size:,}", *cells, f"{found.ms:.2f}")
            table.add_section()
    Console().print(table)


if __name__ == "__main__":
    main()
