"""Write a commit plan with rows of agents as one PostgreSQL statement: whole, or not at all."""

from __future__ import annotations

import functools

from flowengine.store.agent_rows import AGENT_GUARDS, AGENT_KEYS, IDEMPOTENT
from flowengine.store.agent_tables import CALL_IS_OPEN
from flowengine.store.postgres.channels import FEED, task_channel
from flowengine.store.postgres.row_encoder import SECTIONS, Encoding, decode
from flowengine.store.postgres.section_sql import (
    CONSUMED,
    IGNORE,
    IS_HELD,
    SAME_RUN,
    insert,
    update,
    write_rows,
)

#: Sections of which every row must be written, or none of the commit.
_GUARDED = {"runs", "reports", *AGENT_GUARDS}
#: Waits for a purge that is removing the card.
_HELD_PROFILE = (
    "SELECT 1 FROM flowengine_card WHERE project_id = %s::text AND card_id = %s::text FOR KEY SHARE"
)

#: A task whose row is locked counts as lost: this never waits while it holds the lock of a head.
_HELD_TASK = (
    "SELECT 1 FROM flowengine_task WHERE uuid = %s::text AND lease = %s::integer "
    "AND state = 'running' FOR SHARE SKIP LOCKED"
)


@functools.cache
def whole_statement(
    encodings: tuple[Encoding, ...],
    is_one: bool,
    channel: str,
    has_notes: bool,
    holds_profile: bool,
    holds_task: bool,
) -> str:
    """Build the statement of a commit with agents, which is written whole or not at all.

    Lock order: runs, then heads. With several of them the statement waits for none, and is refused
    if one is locked.
    """
    names = [encoding.section for encoding in encodings]
    parts = [decode(encoding) for encoding in encodings]
    checks: list[str] = []
    if "new_heads" in names:
        # Lock order: a new head before its cards and messages, as under the lock of a head.
        parts.append(f"new_heads_w AS ({_unguarded('new_heads')} RETURNING 1)")
        checks.append(_counts("new_heads_w", "new_heads"))
    for name in ("runs", "heads"):
        if name in names and not is_one:
            guard = SAME_RUN if name == "runs" else _same(name)
            parts.append(
                f"{name}_l AS (SELECT 1 FROM {SECTIONS[name].table.name} t JOIN {name}_ g "
                f"ON {guard} WHERE {_guard(name)} FOR UPDATE OF t SKIP LOCKED)"
            )
            checks.append(_counts(f"{name}_l", name))
    for name in names:
        if name in _GUARDED:
            parts.append(f"{name}_w AS ({_guarded_update(name, names)} RETURNING 1)")
            checks.append(_counts(f"{name}_w", name))
        elif name != "new_heads":
            parts.append(f"{name}_w AS ({_unguarded(name)})")
    if holds_profile:
        parts.append(f"held_profile AS ({_HELD_PROFILE})")
        checks.append("EXISTS (SELECT 1 FROM held_profile)")
    if holds_task:
        parts.append(f"held_task AS ({_HELD_TASK})")
        checks.append("EXISTS (SELECT 1 FROM held_task)")
    held = " AND ".join(checks) or "true"
    parts.append(f"checked AS (SELECT 1 / (CASE WHEN {held} THEN 1 ELSE 0 END) AS held)")
    sent = [f"pg_notify('{channel}{FEED}', '')"] if "unnumbered" in names else []
    for name, column, end in (
        ("runs", "run_id", "finished"),
        ("turns", "agent_turn_id", "finished_at"),
    ):
        if name in names:
            told = f"count(pg_notify('{channel}', g.{column}))"
            sent.append(f"(SELECT {told} FROM {name}_ g WHERE g.{end} IS NOT NULL)")
    if has_notes:
        told = f"count(pg_notify('{task_channel(channel)}', n.value))"
        sent.append(f"(SELECT {told} FROM json_array_elements_text(%s::json) n)")
    selected = ", ".join(["'written'", *sent])
    return f"WITH {', '.join(parts)} SELECT {selected} FROM checked WHERE held = 1"


def _counts(written: str, name: str) -> str:
    return f"(SELECT count(*) FROM {written}) = (SELECT count(*) FROM {name}_)"


def _same(name: str) -> str:
    return " AND ".join(f"t.{key} = g.{key}" for key in AGENT_KEYS[name][0])


def _guard(name: str) -> str:
    if name == "runs":
        return "t.revision = g.expected_revision"
    return AGENT_GUARDS.get(name, "true").format(g="g.")


def _guarded_update(name: str, names: list[str]) -> str:
    source = f"{name}_ g"
    if name == "runs":
        return f"{update(name, SAME_RUN, source)} AND {_guard(name)}"
    if name == "reports":
        return update(name, IS_HELD, source, CONSUMED)
    if name == "heads" and "runs" in names:
        source += ", (SELECT count(*) FROM runs_w) first"  # lock order
    return f"{update(name, _same(name), source)} AND {_guard(name)}"


def _unguarded(name: str) -> str:
    source = f"{name}_ g"
    match name:
        case "new_runs":
            return insert(name, "new_runs_")
        case "ended_agent_steps":
            return update(name, _same(name), source)
        case "ended_calls":
            return f"{update(name, _same(name), source)} AND t.{CALL_IS_OPEN}"
        case _ if name in IDEMPOTENT:
            return insert(name, source) + IGNORE
        case "appended_cards":
            length = (
                "(SELECT COALESCE(max(b.position) + 1, 0) FROM flowengine_box_card b "
                "WHERE b.project_id = g.project_id AND b.box_id = g.box_id)"
            )
            return insert(name, source).replace('g."position"', f'g."position" + {length}')
        case _:
            return write_rows(name, source)
