"""The statements that write the sections of a commit plan to SQLite, row by row.

Columns in which all rows of a section have their usual value, such as an absent error, are
constants of the statement: to bind a value takes the driver a third of a microsecond.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from flowengine.store.agent_rows import (
    AGENT_GUARDS,
    AGENT_KEYS,
    AGENT_SECTIONS,
    AWAITED_MESSAGE,
    IDEMPOTENT,
)
from flowengine.store.agent_tables import CALL_IS_OPEN
from flowengine.store.backend import Executor
from flowengine.store.closed_workflows import IS_ADMITTED
from flowengine.store.commit_rows import SECTIONS
from flowengine.store.usual_values import USUAL, USUAL_CALLS, Usual

#: Of the sections that are updated: the key of the table, the column of the section that names
#: it, and the columns that are not written.
_KEYS = {
    "runs": ("id", "run_id", {"expected_revision", "reports"}),
    "steps": ("id", "id", {"run_id"}),
    "ended_timers": ("id", "id", {"run_id"}),
    "reports": ("uuid", "uuid", {"run_id", "lease"}),
}


def _places(name: str, usual: Usual) -> dict[str, str]:
    """Return the mark of each column of a section, or its usual value."""
    marks = {column: f"?{number}" for number, column in enumerate(SECTIONS[name].columns, 1)}
    return marks | {column: _literal(value) for column, value in usual.items()}


def _literal(value: str | int | None) -> str:
    if value is None:
        return "NULL"
    return f"'{value}'" if isinstance(value, str) else str(int(value))


_NONE_USUAL: Usual = {}


def _insert(name: str, how: str = "", usual: Usual = _NONE_USUAL) -> str:
    section = SECTIONS[name]
    names = ", ".join((*section.columns, *section.constants))
    marks = _places(name, usual).values() if usual else ["?"] * len(section.columns)
    values = ", ".join((*marks, *section.constants.values()))
    return f"INSERT{how} INTO {section.table.name} ({names}) VALUES ({values})"


def _update(name: str, usual: Usual = _NONE_USUAL) -> str:
    section, place = SECTIONS[name], _places(name, usual)
    key, source, unwritten = _KEYS[name]
    changed = [
        f"{c} = COALESCE({place[c]}, {c})" if c in section.optional else f"{c} = {place[c]}"
        for c in section.columns
        if c != source and c not in unwritten
    ]
    if name == "reports":
        changed += [f"activity = {place['updated']}", "taken_in = 1"]
    return f"UPDATE {section.table.name} SET {', '.join(changed)} WHERE {key} = {place[source]}"


def _insert_run() -> str:
    section, place = SECTIONS["new_runs"], _places("new_runs", _NONE_USUAL)
    is_admitted = IS_ADMITTED.format(
        parent=place["parent_run_id"], call=place["agent_call"], workflow=place["workflow"]
    )
    names = ", ".join((*section.columns, *section.constants))
    values = ", ".join((*place.values(), *section.constants.values()))
    return (
        f"INSERT OR IGNORE INTO {section.table.name} ({names}) SELECT {values} "
        f"WHERE {is_admitted} RETURNING id"
    )


_NUMBERED = {name: _update(name) if name in _KEYS else _insert(name) for name in SECTIONS} | {
    "joins": f"{_insert('joins')} "
    "ON CONFLICT (id) DO UPDATE SET remaining = remaining + excluded.remaining",
    "consumed_tasks": "UPDATE flowengine_task SET taken_in = 1 WHERE uuid = ?2",
    "superseded_steps": "UPDATE flowengine_step SET superseded = 1 WHERE id = ?2",
    "consumed_facts": "UPDATE flowengine_fact SET taken_in = 1 WHERE id = ?2",
    "parent_facts": "INSERT OR IGNORE INTO flowengine_fact "
    "(id, run_id, kind, payload, created, taken_in) VALUES (?3, ?2, ?4, ?5, ?6, 0)",
    "agent_reports": "INSERT OR IGNORE INTO flowengine_agent_inbox (project_id, inbox_id, "
    "agent_id, message_type, correlation_id, agent_turn_id, turn_epoch, payload, next_retry_at, "
    "created_at, status, processed_at, retry_count) "
    "VALUES (?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, 0)",
    "payloads": "INSERT OR IGNORE INTO flowengine_payload (hash, body, created) "
    "VALUES (?2, ?3, ?4)",
    "labels": _insert("labels", " OR IGNORE"),
    "error_types": "INSERT OR IGNORE INTO flowengine_label (run_id, name, value, created) "
    "VALUES (?1, ?2, '', (SELECT r.created FROM flowengine_run r WHERE r.id = ?1))",
    "logs": _insert("logs", " OR IGNORE"),
    "references": "INSERT OR IGNORE INTO flowengine_reference (run_id, hash) VALUES (?2, ?3)",
}


class _Write(NamedTuple):
    text: str
    #: Returns the parameters of a row, in the order of their marks; None: the row itself.
    parameters: Callable[[Sequence[Any]], Sequence[Any]] | None


def _write(text: str) -> _Write:
    """Bind by position: to look up names takes the driver longer than to bind.

    The driver takes a sequence for nameless marks only: from Python 3.14 on it refuses ?2.
    """
    places = [int(number) - 1 for number in re.findall(r"\?(\d+)", text)]
    if not places:
        return _Write(text, None)
    (first, *others) = places
    pick = itemgetter(first, *others) if others else lambda row: (row[first],)
    return _Write(re.sub(r"\?\d+", "?", text), pick)


INSERT_RUN = _write(_insert_run())
_WRITES = {name: _write(text) for name, text in _NUMBERED.items()}


# --- the rows of agents ---


def _agent_insert(name: str, how: str = "") -> str:
    section = AGENT_SECTIONS[name]
    names = ", ".join((*section.columns, *section.constants))
    values = ", ".join((*(["?"] * len(section.columns)), *section.constants.values()))
    return f"INSERT{how} INTO {section.table.name} ({names}) VALUES ({values})"


def _agent_key(name: str) -> str:
    columns = AGENT_SECTIONS[name].columns
    return " AND ".join(f"t.{c} = ?{columns.index(c) + 1}" for c in AGENT_KEYS[name][0])


def _agent_update(name: str) -> str:
    section, (key, guards) = AGENT_SECTIONS[name], AGENT_KEYS[name]
    changed = [
        f"{c} = COALESCE(?{at}, {c})" if c in section.optional else f"{c} = ?{at}"
        for at, c in enumerate(section.columns, 1)
        if c not in key and c not in guards
    ]
    if name == "heads":
        place = f"?{section.columns.index('messages') + 1}"
        changed.append(AWAITED_MESSAGE.replace("{g}messages", place).format(t=""))
    where = _agent_key(name) + (f" AND t.{CALL_IS_OPEN}" if name == "ended_calls" else "")
    return f"UPDATE {section.table.name} AS t SET {', '.join(changed)} WHERE {where}"


def _agent_check(name: str) -> str:
    section, guards = AGENT_SECTIONS[name], AGENT_GUARDS[name]
    for at, column in enumerate(section.columns, 1):
        guards = guards.replace(f"{{g}}{column}", f"?{at}")
    return f"SELECT 1 FROM {section.table.name} t WHERE {_agent_key(name)} AND {guards}"


_WRITES |= {
    name: _write(_agent_update(name) if name in AGENT_KEYS else _agent_insert(name))
    for name in AGENT_SECTIONS
}
_WRITES |= {name: _write(_agent_insert(name, " OR IGNORE")) for name in IDEMPOTENT}
# Row by row: each finds the length after the one before.
_WRITES["appended_cards"] = _write(
    "INSERT INTO flowengine_box_card (project_id, box_id, position, card_id, agent_turn_id, "
    "turn_epoch) VALUES (?1, ?2, (SELECT COALESCE(max(position) + 1, 0) FROM flowengine_box_card "
    "WHERE project_id = ?1 AND box_id = ?2), ?4, ?5, ?6)"
)
CHECKS = {name: _write(_agent_check(name)) for name in AGENT_GUARDS}


class _UsualWrite(NamedTuple):
    values: Callable[[Sequence[Any]], Sequence[Any]]  #: of a row, in the columns that may be usual
    usual: set[tuple[Any, ...]]
    write: _Write


def _usual_write(name: str, usual: Usual) -> _UsualWrite:
    values = itemgetter(*map(SECTIONS[name].columns.index, usual))
    text = _update(name, usual) if name in _KEYS else _insert(name, usual=usual)
    return _UsualWrite(values, {tuple(usual.values())}, _write(text))


#: By section, those with the most constants first.
_USUAL_WRITES = {
    name: [_usual_write(name, usual) for usual in variants]
    for name, variants in {
        "new_steps": (USUAL["new_steps"], USUAL_CALLS),
        "steps": (USUAL["steps"],),
        "new_tasks": (USUAL["new_tasks"],),
    }.items()
}


def write_rows(executor: Executor, name: str, rows: Sequence[Sequence[Any]]) -> None:
    """Write the rows of a section."""
    text, parameters = _WRITES[name]
    for values, usual, write in _USUAL_WRITES.get(name, ()):
        if {*map(values, rows)} == usual:
            text, parameters = write
            break
    executor.many(text, rows if parameters is None else list(map(parameters, rows)))
