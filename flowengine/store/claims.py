"""Claims: a task has one holder at a time.

A claim raises the task's lease, and every later write about the task names it (fencing).

Several tasks are claimed together only if the first is of a quick facet, and then only tasks of
quick facets: a task behind a slow one in the same batch would wait for it. A task that has lost a
worker, or must not run twice, is claimed alone.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from flowengine.errors import PayloadUnreadable
from flowengine.evaluator import TaskDefinition, TaskState
from flowengine.store import codec
from flowengine.store.parts import Part
from flowengine.store.records import TASK_COLUMNS, task_from

log = logging.getLogger("flowengine")
#: Its key is not known here, or it was damaged.
_UNREADABLE = (PayloadUnreadable, ValueError, LookupError)
_UNREADABLE_PAUSE = 5_000  #: milliseconds until a task is tried here again that could not be read

# --- the SQL that PostgreSQL and SQLite share ---

_IS_PENDING = "state = 'pending' AND task_list_name = %(task_list)s"
IS_DUE = (
    f"{_IS_PENDING} AND due <= {{now}} AND (name {{in_names}} OR short_name {{in_short_names}})"
)
IS_QUICK = "(name {in_quick} AND losses = 0 AND NOT runs_once)"
#: Whether another tenant has due tasks in the list of the chosen ones.
OTHERS_WAIT = " OR ".join(
    "EXISTS (SELECT 1 FROM flowengine_task o WHERE o.state = 'pending' "
    "AND o.task_list_name = %(task_list)s AND o.due <= {now} "
    f"AND o.tenant {sign} (SELECT tenant FROM chosen LIMIT 1))"
    for sign in "><"
)
#: A message names tasks, and anybody who reaches the broker can send one: the row decides.
IS_CLAIMABLE = (
    "t.task_list_name = %(task_list)s AND t.due <= {now} "
    "AND (%(any)s OR t.name {in_names} OR t.short_name {in_short_names}) "
    "AND (%(alone)s OR (t.losses = 0 AND NOT t.runs_once))"
)
#: The state of a task that its worker gives back. The task itself knows that its run is held: so
#: the row lock of the task orders the hold of a run and the release of its tasks.
PARKED = "CASE WHEN is_held THEN 'held' ELSE 'pending' END"
#: A task with limits or rates waits for them again: the slot of a rate may be free since then.
RELEASED = "CASE WHEN is_held THEN 'held' WHEN queue IS NOT NULL THEN 'waiting' ELSE 'pending' END"
#: Priorities order the tasks of one tenant.
ORDER = "tenant, rank, due, position"
_RETURNED = ", ".join(f"flowengine_task.{name}" for name in TASK_COLUMNS)
_CLAIM = (
    "UPDATE flowengine_task SET state = 'running', lease = flowengine_task.lease + 1, "
    "server_id = %(server)s, boot_id = %(boot)s, pid = %(process)s, "
    "started = {now}, activity = {now}, updated = {now} "
    "FROM chosen WHERE flowengine_task.uuid = chosen.uuid "
    f"RETURNING {_RETURNED}, "
)
_PARAMS = ", (SELECT s.params FROM flowengine_step s WHERE s.id = flowengine_task.step_id)"


def claim_text(chosen: str, member: str, *, skipped: str = "0", count: str = "0") -> str:
    """Build the statement that claims the tasks of the CTE `chosen`.

    `member` tests a name against a list. The statement returns the columns of each task, how many
    tasks were locked and `skipped`, the `count` of due tasks, and the parameters of the step.
    It is a format string with {now} for the time.
    """
    text = f"{chosen}{_CLAIM}{skipped}, {count}{_PARAMS}"
    for name in ("names", "short_names", "quick"):
        text = text.replace(f"{{in_{name}}}", member.format(name))
    return text


@functools.cache
def of_tenant(text: str) -> str:
    """Return the statement that claims due tasks, for the tasks of one tenant alone."""
    return text.replace(_IS_PENDING, f"{_IS_PENDING} AND tenant = %(tenant)s")


#: Pending tasks that are read to find a due one. Behind them one is assumed: the cost must not
#: grow with the number of tasks that are due later.
_READ_AHEAD = 100


def any_due_text(of_lists: str = "") -> str:
    """Build the query whether a task is due; `of_lists` is a condition on its task list."""
    return (
        f"SELECT count(*) > {_READ_AHEAD} OR min(due) <= %(now)s FROM (SELECT due "
        f"FROM flowengine_task WHERE state = 'pending'{of_lists} LIMIT {_READ_AHEAD + 1}) t"
    )


_ANY_DUE = any_due_text()


def park_waiting_text(limit: int, lock: str = "") -> str:
    """Build the statement that postpones the due tasks of one circuit breaker."""
    return f"""
WITH waiting AS (
    SELECT uuid FROM flowengine_task
    WHERE state = 'pending' AND task_list_name = %(task_list)s AND due <= %(now)s
        AND limit_key = %(key)s
    ORDER BY {ORDER} LIMIT {limit}{lock}
) UPDATE flowengine_task
SET lease = lease + 1, due = %(due)s, published = NULL, updated = %(now)s,
    waited_circuit = COALESCE(waited_circuit, 0) + %(due)s - %(now)s,
    waited_backoff = COALESCE(waited_backoff, due - created)
WHERE uuid IN (SELECT uuid FROM waiting) AND state = 'pending' RETURNING uuid"""


# --- claims ---


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The holder of a claim: a server, its boot, and the process."""

    server_id: str = ""
    boot_id: str = ""
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """The claimed tasks of a list."""

    tasks: list[TaskDefinition]
    is_more: bool = False  #: more tasks are due; after a claim of given ids: of other tenants
    #: Tasks that were locked and not claimed: other workers skipped them while they were locked.
    passed_over: int = 0
    is_limited: bool = False  #: the server has a limit: it claims whatever it works on
    full_lists: Collection[str] = ()  #: other lists whose tasks wait for room in this server


class Claims(Part):
    """Claims tasks."""

    def claim(
        self,
        names: Sequence[str],
        task_list: str,
        identity: WorkerIdentity,
        *,
        limit: int = 1,
        quick: Collection[str] = (),
        after: str = "",
        tenant: str | None = None,
    ) -> Claim:
        """Claim the most urgent due task of those facets, and up to `limit` quick ones behind it.

        All are of one tenant: the next behind `after` in the order of names, which has no end, so
        `after` itself comes last; or `tenant`. A name without a dot matches facets of any
        namespace with that short name.
        """
        listed, text = self._session.dialect.listed, self._session.dialect.CLAIM
        values = {"task_list": task_list, "quick": listed(quick), "limit": limit, "after": after}
        if tenant is not None:
            text, values["tenant"] = of_tenant(text), tenant
        rows = self._take(text, values, identity, names)
        if not rows:
            return Claim([])
        skipped, due = rows[0][-3:-1]
        return Claim(self._tasks(rows), due > len(rows), skipped)

    def claim_these(
        self,
        task_ids: Sequence[str],
        task_list: str,
        identity: WorkerIdentity,
        *,
        names: Collection[str] | None = None,
        limit: int | None = None,
    ) -> Claim:
        """Claim those of these tasks of a list that are pending and due, up to `limit`.

        With `names`, only tasks of these facets. Several only of those that may be batched. The
        result says whether other tenants have due tasks in the list.
        """
        values = {
            "task_list": task_list,
            "ids": json.dumps(list(task_ids)),
            "limit": len(task_ids) if limit is None else limit,
            "any": names is None,
            "alone": limit is None or limit == 1,
        }
        rows = self._take(self._session.dialect.CLAIM_THESE, values, identity, names or ())
        return Claim(self._tasks(rows), bool(rows and rows[0][-2]))

    def is_any_due(self, task_lists: Collection[str]) -> bool:
        """Whether a task of these lists may be due, or of any list if none is given."""
        session = self._session
        text, values = _ANY_DUE, {"now": session.now()}
        if task_lists:
            text = session.dialect.ANY_DUE_OF_LISTS
            values["lists"] = session.dialect.listed(task_lists)
        return bool(session.rows(text, values)[0][0])

    def _take(
        self, text: str, values: dict[str, Any], identity: WorkerIdentity, names: Collection[str]
    ) -> list[tuple[Any, ...]]:
        dialect, now = self._session.dialect, self._session.database.statement_time
        values |= {
            "names": dialect.listed(names),
            "short_names": dialect.listed([name for name in names if "." not in name]),
            "server": identity.server_id,
            "boot": identity.boot_id,
            "process": identity.pid,
            "now": now,
        }
        clock = dialect.CLOCK if now is None else "%(now)s"
        return self._session.rows(_with_clock(text, clock), values)

    def _tasks(self, rows: Sequence[tuple[Any, ...]]) -> list[TaskDefinition]:
        try:
            tasks = [task_from(row, codec.attributes(row[-1])) for row in rows]
            self._session.payloads.fill_in([task.data or {} for task in tasks])
        except _UNREADABLE:
            tasks = self._readable(rows)
        return sorted(tasks, key=lambda task: (task.rank, task.due, task.position))

    def _readable(self, rows: Sequence[tuple[Any, ...]]) -> list[TaskDefinition]:
        """Decode those tasks that can be read here; park the others for workers with their key.

        They are committed as claimed: without it those beside them would wait for a long time.
        """
        tasks, unreadable = [], []
        for row in rows:
            task = task_from(row, {})
            try:
                task.data = self._session.payloads.resolved(codec.attributes(row[-1]))
                tasks.append(task)
            except _UNREADABLE as problem:
                unreadable.append((task.uuid, task.lease))
                log.error(
                    "task of %s of run %s: %s; it is left to other workers, and tried here again "
                    "after %d s",
                    *(task.step_path, task.workflow_id, problem, _UNREADABLE_PAUSE / 1000),
                    extra={"action": "task_unreadable", "run": task.workflow_id},
                )
        now = self._session.now()
        self._session.reports.park(unreadable, now + _UNREADABLE_PAUSE, now)
        return tasks


@functools.cache
def _with_clock(text: str, clock: str) -> str:
    return text.replace("{now}", clock)


def claimed_by(task: TaskDefinition, identity: WorkerIdentity) -> TaskDefinition:
    """Claim a task before its insertion: it is inserted as running, under its first lease."""
    task.state, task.lease = TaskState.RUNNING, 1
    task.runner_id, task.boot_id, task.pid = identity.server_id, identity.boot_id, identity.pid
    return task
