"""A full database: a step costs the same when a million finished ones lie beside it.

One finished run is copied in SQL until there are enough. Ids of the copies are digests of the
original's, so that indexes look as they would after real runs. A second contender, with an
empty database, takes turns with the first.
"""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.sections.section import Say, Section, fresh, in_turns, size_for, timed
from benchmarks.servers import Servers
from benchmarks.targets import Ratio

STEPS = 1_000_000
_TEMPLATE = 1_000  # items of the run that is copied
_CHUNK = 100  # copies made by one statement
_SIZES = ((100, 5), (5_000, 3))  # steps, times
_SHAPES = ("W2", "W3", "W6")
_DIGEST = re.compile("[0-9a-f]{32}")
#: Columns that look like ids of the run and are not: copies share what they name.
_SHARED = ("program_hash", "server_id", "boot_id")


def run(servers: Servers, say: Say, steps: int = STEPS) -> Section:
    section = Section(
        f"full database: ms/step when empty, and beside {steps:,} finished steps (flowengine)",
        ("workload", "N", "empty", "full", "full / empty"),
        [servers.measure_commits()],
    )
    with fresh(servers, "flowengine") as empty, fresh(servers, "flowengine") as full:
        assert full.database is not None
        timed(full, "W2", _TEMPLATE)
        for contender in (empty, full):
            contender.freeze()
        with servers.connect(full.database) as connection:
            section.data["rows"] = fill(connection, steps, say)
        for workload, size, times in _jobs():
            pair = in_turns(empty, full, workload, size, times)
            before, after = pair.medians
            say(f"full database {workload} {size:,}: {before:.2f} → {after:.2f} ms/step")
            ratio = pair.ratio
            cells = (workload, f"{size:,}", f"{before:.3f}", f"{after:.3f}", f"{ratio:.2f}")
            section.rows.append(cells)
            section.data[f"{workload} {size}"] = {"empty": before, "full": after}
            what = f"{workload} of size {size:,}: time per step, full × empty"
            section.ratios.append(Ratio(what, ratio, at_most=1.3))
    return section


def _jobs() -> list[tuple[str, int, int]]:
    return [(name, size_for(name, steps), times) for steps, times in _SIZES for name in _SHAPES]


def fill(connection: psycopg.Connection[Any], steps: int, say: Say) -> dict[str, int]:
    """Copy the newest run until there are `steps` finished steps; return the rows of each table."""
    newest = connection.execute("SELECT id FROM flowengine_run ORDER BY created DESC LIMIT 1")
    (run_id,) = newest.fetchone() or (None,)
    copies = [_copying(connection, table, run_id) for table in _tables(connection)]
    wanted = -(-steps // _TEMPLATE)
    for first in range(1, wanted + 1, _CHUNK):
        last = min(first + _CHUNK - 1, wanted)
        for statement in copies:
            connection.execute(statement, {"run": run_id, "first": first, "last": last})
        say(f"filling: {last * _TEMPLATE:,} steps")
    connection.execute("VACUUM ANALYZE")  # which autovacuum would have done on the way
    return {name: _count(connection, name) for name in _tables(connection)}


def _tables(connection: psycopg.Connection[Any]) -> list[str]:
    found = connection.execute(
        "SELECT DISTINCT table_name FROM information_schema.columns"
        " WHERE table_name LIKE 'flowengine\\_%' AND column_name = 'run_id'"
    )
    return ["flowengine_run", *sorted(name for (name,) in found)]


def _copying(connection: psycopg.Connection[Any], table: str, run_id: Any) -> sql.Composed:
    """INSERT … SELECT of one run's rows, with an id of its own wherever the run has one."""
    key = "id" if table == "flowengine_run" else "run_id"
    rows = connection.execute(
        sql.SQL("SELECT * FROM {} WHERE {} = %s").format(
            sql.Identifier(table), sql.Identifier(key)
        ),
        (run_id,),
    )
    names = [column.name for column in rows.description or ()]
    values = list(zip(*rows, strict=True)) or [()] * len(names)
    terms = []
    for name, column in zip(names, values, strict=True):
        is_id = name not in _SHARED and _are_digests(column)
        if name == key and column and not is_id:
            raise TypeError(f"{table}.{name} holds {column[0]!r}: no digest that can be made anew")
        term = "md5({} || '-' || copy)" if is_id else "{}"
        terms.append(sql.SQL(term).format(sql.Identifier(name)))
    return sql.SQL(
        "INSERT INTO {table} ({names}) SELECT {terms} FROM {table},"
        " generate_series(%(first)s::int, %(last)s::int) AS copy WHERE {key} = %(run)s"
    ).format(
        table=sql.Identifier(table),
        names=sql.SQL(", ").join(map(sql.Identifier, names)),
        terms=sql.SQL(", ").join(terms),
        key=sql.Identifier(key),
    )


def _are_digests(values: tuple[Any, ...]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(v, str) and _DIGEST.fullmatch(v) for v in known)


def _count(connection: psycopg.Connection[Any], table: str) -> int:
    found = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table)))
    (count,) = found.fetchone() or (0,)
    return int(count)
