"""Claims: a task has one holder at a time.

A claim raises the task's lease, and every later write about the task names it (fencing).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from flowengine.evaluator import TaskDefinition
from flowengine.store import codec
from flowengine.store.parts import Part
from flowengine.store.records import WorkerIdentity, task_from

__all__ = ["Claim", "Claims", "WorkerIdentity"]


@dataclass(frozen=True, slots=True)
class Claim:
    """The claimed tasks of a list."""

    tasks: list[TaskDefinition]
    is_more: bool = False  #: more tasks are due
    #: Tasks that were locked and not claimed: other workers skipped them while they were locked.
    passed_over: int = 0


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
    ) -> Claim:
        """Claim the most urgent due task of those facets, and up to `limit` quick ones behind it.

        A name without a dot matches facets of any namespace with that short name.
        """
        listed = self._session.dialect.listed
        values = {"task_list": task_list, "quick": listed(quick), "limit": limit}
        rows = self._take(self._session.dialect.CLAIM, values, identity, names)
        if not rows:
            return Claim([])
        skipped, due = rows[0][-3:-1]
        return Claim(self._tasks(rows), due > len(rows), skipped)

    def claim_these(
        self,
        task_ids: Sequence[str],
        identity: WorkerIdentity,
        *,
        names: Collection[str] | None = None,
        limit: int | None = None,
    ) -> list[TaskDefinition]:
        """Claim those of these tasks that are still pending, up to `limit`.

        With `names`, only tasks of these facets. Several only of those that may be batched.
        """
        values = {
            "ids": json.dumps(list(task_ids)),
            "limit": len(task_ids) if limit is None else limit,
            "any": names is None,
            "alone": limit is None or limit == 1,
        }
        rows = self._take(self._session.dialect.CLAIM_THESE, values, identity, names or ())
        return self._tasks(rows)

    def _take(
        self, text: str, values: dict[str, Any], identity: WorkerIdentity, names: Collection[str]
    ) -> list[tuple[Any, ...]]:
        dialect, now = self._session.dialect, self._session.statement_time
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
        tasks = [task_from(row, codec.attributes(row[-1])) for row in rows]
        self._session.payloads.fill_in([task.data or {} for task in tasks])
        return sorted(tasks, key=lambda task: (-task.priority, task.due, task.position))


@functools.cache
def _with_clock(text: str, clock: str) -> str:
    return text.replace("{now}", clock)
