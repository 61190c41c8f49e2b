"""The SQL that writes the rows of each section of a commit plan, given as a table."""

from __future__ import annotations

from collections.abc import Mapping

from flowengine.store.agent_rows import AGENT_KEYS, AWAITED_MESSAGE
from flowengine.store.postgres.row_encoder import SECTIONS

#: The row `g` names the task `t`, which is still held. One condition about both: given the state
#: by itself, the planner may scan all running tasks.
IS_HELD = "t.uuid = g.uuid AND CASE t.lease WHEN g.lease THEN t.state = 'running' END"
SAME_RUN = "t.id = g.run_id"
IGNORE = " ON CONFLICT DO NOTHING"
CONSUMED = ", activity = g.updated, taken_in = true"
#: Columns of a section that name its row or guard it, and are not written.
_KEYS = {
    "runs": {"run_id", "expected_revision", "reports"},
    "reports": {"run_id", "uuid", "lease"},
    "steps": {"run_id", "id"},
    "ended_timers": {"run_id", "id"},
    **{name: {*key, *guards} for name, (key, guards) in AGENT_KEYS.items()},
}


def write_rows(name: str, source: str) -> str:
    match name:
        case "new_runs":
            return "SELECT id FROM ok"
        case "runs":
            return update(name, SAME_RUN, source)
        case "reports":
            return update(name, "t.uuid = g.uuid", source, CONSUMED)
        case "steps" | "ended_timers":
            return update(name, "t.id = g.id", source)
        case "superseded_steps":
            text = "UPDATE flowengine_step t SET superseded = true"
            return f"{text} FROM {source} WHERE t.id = g.id"
        case "consumed_tasks":
            text = "UPDATE flowengine_task t SET taken_in = true"
            return f"{text} FROM {source} WHERE t.uuid = g.uuid"
        case "consumed_facts":
            text = "UPDATE flowengine_fact t SET taken_in = true"
            return f"{text} FROM {source} WHERE t.id = g.id"
        case "payloads" | "agent_reports":
            return insert(name, source, skipped="run_id") + IGNORE
        case "labels" | "error_types" | "logs":
            return insert(name, source) + IGNORE
        case "references":
            return insert(name, source, {"to_run": "run_id"}, skipped="run_id") + IGNORE
        case "parent_facts":
            return insert(name, source, {"to_run": "run_id"}, skipped="run_id") + IGNORE
        case "joins":
            more = "flowengine_join.remaining + excluded.remaining"
            new = insert(name, source)
            return f"{new} ON CONFLICT (id) DO UPDATE SET remaining = {more}"
        case _:
            # Without ON CONFLICT, which costs as much as the insertion: under the run's lock, or
            # its guard, no other process inserts the same rows.
            return insert(name, source)


def update(name: str, where: str, source: str, more: str = "") -> str:
    section = SECTIONS[name]
    changed = ", ".join(
        f'"{c}" = COALESCE(g."{c}", t."{c}")' if c in section.optional else f'"{c}" = g."{c}"'
        for c in section.columns
        if c not in _KEYS[name]
    )
    if name == "heads":
        changed += ", " + AWAITED_MESSAGE.format(g="g.", t="t.")
    return f"UPDATE {section.table.name} t SET {changed}{more} FROM {source} WHERE {where}"


def insert(
    name: str, source: str, renamed: Mapping[str, str] | None = None, skipped: str = ""
) -> str:
    section = SECTIONS[name]
    columns = [column for column in section.columns if column != skipped]
    into = [(renamed or {}).get(column, column) for column in columns]
    names = ", ".join(f'"{column}"' for column in (*into, *section.constants))
    prefix = "" if name == "new_runs" else "g."
    values = [*(f'{prefix}"{column}"' for column in columns), *section.constants.values()]
    return f"INSERT INTO {section.table.name} ({names}) SELECT {', '.join(values)} FROM {source}"
