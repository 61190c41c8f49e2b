"""Claims: a task is taken by one.

A claim raises the task's lease, and whatever is said about the task afterwards names it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from flowengine.evaluator import TaskDefinition
from flowengine.store import codec, payloads
from flowengine.store.executors import CLOCK, Executor
from flowengine.store.records import TASK_COLUMNS, task_from


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Who claims."""

    server_id: str = ""
    boot_id: str = ""
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """What was taken of a list."""

    tasks: list[TaskDefinition]
    is_more: bool = False  #: more is due than was taken
    #: So many were locked for a moment and not taken: who looked meanwhile did not see them.
    passed_over: int = 0


_RETURNED = ", ".join(f"flowengine_task.{name}" for name in TASK_COLUMNS)
_TAKE = (
    "UPDATE flowengine_task SET state = 'running', lease = flowengine_task.lease + 1, "
    "server_id = {server}, boot_id = {boot}, pid = {process}, "
    "started = {now}, activity = {now}, updated = {now} "
    "FROM chosen WHERE flowengine_task.uuid = chosen.uuid "
    f"RETURNING {_RETURNED}, {{passed_over}}, {{number}}, "
    "(SELECT s.params FROM flowengine_step s WHERE s.id = flowengine_task.step_id)"
)
# The candidates are locked in a CTE, which is evaluated once. A plain subquery PostgreSQL may
# evaluate for every row it looks at, and each time the limit begins anew.
#
# Several are taken at once only if the first is known to be quick, and then only quick ones:
# what lies behind a slow task in one pair of hands would wait for it. A task that has lost a
# worker, or must not run twice, is taken alone.
_IS_DUE = (
    "state = 'pending' AND task_list_name = {task_list} AND due <= {now} "
    "AND (name {in_names} OR short_name {in_short_names})"
)
_IS_QUICK = "(name {in_quick} AND losses = 0 AND NOT runs_once)"
_DUE = (
    # What is locked and not taken others would miss, and go: so first one, and more only behind
    # a quick one. How many are left is counted without a lock.
    f"""
WITH foremost AS MATERIALIZED (
    SELECT uuid, {_IS_QUICK} AS is_quick FROM flowengine_task
    WHERE {_IS_DUE} ORDER BY rank, due, position LIMIT 1 FOR UPDATE SKIP LOCKED
), behind AS MATERIALIZED (
    SELECT uuid, {_IS_QUICK} AS is_quick FROM flowengine_task
    WHERE {_IS_DUE} AND (SELECT is_quick AND {{taken}} > 1 FROM foremost)
        AND uuid <> (SELECT uuid FROM foremost)
    ORDER BY rank, due, position LIMIT {{taken}} - 1 FOR UPDATE SKIP LOCKED
), chosen AS (
    SELECT uuid FROM foremost UNION ALL SELECT uuid FROM behind WHERE is_quick
) """,
    # Here one writes at a time.
    f"""
WITH candidates AS (
    SELECT uuid, rank, due, position, {_IS_QUICK} AS is_quick FROM flowengine_task
    WHERE {_IS_DUE} ORDER BY rank, due, position LIMIT {{taken}} + 1
), numbered AS (
    SELECT uuid, is_quick, row_number() OVER (ORDER BY rank, due, position) AS place
    FROM candidates
), chosen AS (
    SELECT uuid FROM numbered
    WHERE place = 1 OR (
        is_quick AND place <= {{taken}} AND (SELECT is_quick FROM numbered WHERE place = 1)
    )
) """,
)
_DUE_NUMBER = (
    f"(SELECT count(*) FROM (SELECT FROM flowengine_task WHERE {_IS_DUE} LIMIT {{taken}} + 1) t)",
    "(SELECT count(*) FROM candidates)",
)
_PASSED_OVER = ("(SELECT count(*) FROM behind WHERE NOT is_quick)", "0")
_OF_THEM = (
    "({any} OR t.name {in_names} OR t.short_name {in_short_names}) "
    "AND ({alone} OR (t.losses = 0 AND NOT t.runs_once))"
)
# Each is looked up by its id, one after the other, until there are enough: LATERAL leaves the
# planner no choice, and the state is hidden from it. Left to itself it walks all that is
# pending, or all there is.
_THESE = (
    "WITH chosen AS MATERIALIZED (SELECT found.uuid "
    "FROM json_array_elements_text({ids}::json) AS w(uuid), LATERAL ("
    "SELECT t.uuid FROM flowengine_task t WHERE t.uuid = w.uuid "
    f"AND t.state || '' = 'pending' AND {_OF_THEM} "
    "FOR UPDATE SKIP LOCKED) AS found LIMIT {taken}) ",
    "WITH chosen AS MATERIALIZED (SELECT t.uuid "
    "FROM json_each({ids}) AS w CROSS JOIN flowengine_task AS t "
    f"WHERE t.uuid = w.value AND +t.state = 'pending' AND {_OF_THEM} LIMIT {{taken}}) ",
)
_SINGLE = ("server", "boot", "process", "task_list", "taken", "ids", "any", "alone")
_SEVERAL = ("quick", "names", "short_names")
_NONE = ("0", "0")


def _texts(
    chosen: tuple[str, str], number: tuple[str, str] = _NONE, passed_over: tuple[str, str] = _NONE
) -> tuple[str, str]:
    """The statement for either database that takes what is chosen so; the time is filled later."""
    places = (
        {
            **{f"in_{name}": f"= ANY(%({name})s::text[])" for name in _SEVERAL},
            **{name: f"%({name})s" for name in _SINGLE},
        },
        {
            **{f"in_{name}": f"IN (SELECT value FROM json_each(:{name}))" for name in _SEVERAL},
            **{name: f":{name}" for name in _SINGLE},
        },
    )

    def text(which: int) -> str:
        take = _TAKE.replace("{number}", number[which]).replace("{passed_over}", passed_over[which])
        return (chosen[which] + take).format(now="{now}", **places[which])

    return text(0), text(1)


_CLAIM = _texts(_DUE, _DUE_NUMBER, _PASSED_OVER)
_CLAIM_THESE = _texts(_THESE)


def claim(
    executor: Executor,
    names: Sequence[str],
    task_list: str,
    identity: WorkerIdentity,
    now: int | None,
    most: int = 1,
    quick: Collection[str] = (),
) -> Claim:
    """Take the most urgent due task of those names, and quick ones behind it, up to so many.

    Nobody else gets them. A name without a dot also takes tasks of any namespace with that
    short name. Without `now` the server's own clock is read.
    """
    values = {
        "task_list": task_list,
        **_named(names),
        "quick": list(quick),
        "taken": most,
    }
    rows = _take(executor, _CLAIM, values, identity, now)
    if not rows:
        return Claim([])
    passed_over, number = rows[0][-3:-1]
    return Claim(_claimed(executor, rows), number > len(rows), passed_over)


def claim_these(
    executor: Executor,
    task_ids: Sequence[str],
    identity: WorkerIdentity,
    now: int | None,
    names: Collection[str] | None = None,
    most: int | None = None,
) -> list[TaskDefinition]:
    """Take those of these tasks that are still to be had, the first so many of them.

    With `names` only those of these names; several only of those that may be taken together.
    """
    values = {
        "ids": json.dumps(list(task_ids)),
        "taken": len(task_ids) if most is None else most,
        "any": names is None,
        "alone": most is None or most == 1,
        **_named(names or ()),
    }
    return _claimed(executor, _take(executor, _CLAIM_THESE, values, identity, now))


def _named(names: Collection[str]) -> dict[str, Any]:
    return {"names": list(names), "short_names": [name for name in names if "." not in name]}


def _take(
    executor: Executor,
    texts: tuple[str, str],
    values: dict[str, Any],
    identity: WorkerIdentity,
    now: int | None,
) -> list[tuple[Any, ...]]:
    # As a parameter: a text that changes would be parsed anew each time.
    clock = CLOCK if now is None else ":now" if executor.is_sqlite else "%(now)s"
    values |= {"server": identity.server_id, "boot": identity.boot_id, "process": identity.pid}
    values["now"] = now
    if executor.is_sqlite:
        values |= {name: json.dumps(values.get(name, [])) for name in _SEVERAL}
    return executor.rows(texts[executor.is_sqlite].replace("{now}", clock), values)


def _claimed(executor: Executor, rows: Sequence[tuple[Any, ...]]) -> list[TaskDefinition]:
    found = [task_from(row, codec.attributes(row[-1])) for row in rows]
    payloads.fill_in(executor, [task.data or {} for task in found])
    return sorted(found, key=lambda task: (-task.priority, task.due, task.position))
