"""The limits of workers: those that somebody has set, by name, and the tries that a server holds.

The processes of one server claim under one lock, which lasts as long as their transaction. So the
tries that are counted are all there are, and no two processes take the last place.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from flowengine.store import codec
from flowengine.store.claims import ORDER, WorkerIdentity
from flowengine.store.parts import Part, statement
from flowengine.store.tables import TASK_IS_PENDING, TASK_IS_RUNNING

_SEARCHED = 1_000  # pending tasks among which those of the held runs are looked for
_CANDIDATES = 20  # that are found; other servers may have claimed some of them
_MAX_NAMES = 1_000  # that a hint at a similar name is looked for in

_OF_SERVER = (
    "SELECT s.server_name, COALESCE(l.max_tasks, s.max_tasks), "
    "COALESCE(l.max_workflows, s.max_workflows), s.full_lists FROM flowengine_server s "
    "LEFT JOIN flowengine_workerlimit l ON l.name = s.server_name WHERE s.uuid = %s"
)
_HELD = (
    f"SELECT run_id, count(*) FROM flowengine_task WHERE {TASK_IS_RUNNING} AND boot_id = %s "
    "GROUP BY run_id"
)
# Among the most urgent tasks only: no index has the pending tasks of a run. A server that finds
# none holds tries of these runs, and has room for others when they have ended.
_OF_RUNS = (
    "SELECT uuid FROM (SELECT uuid, run_id, name, short_name FROM flowengine_task "
    f"WHERE {TASK_IS_PENDING} AND task_list_name = :task_list AND due <= :now{{}} "
    f"ORDER BY {ORDER} LIMIT {_SEARCHED}) t "
    f"WHERE run_id IN :runs AND (name IN :names OR short_name IN :names) LIMIT {_CANDIDATES}"
)
_DUE_OF_RUNS = statement(_OF_RUNS.format(""), "runs", "names")
_DUE_OF_TENANT = statement(_OF_RUNS.format(" AND tenant = :tenant"), "runs", "names")
_THESE_OF_RUNS = statement(
    "SELECT uuid FROM flowengine_task WHERE uuid IN :ids AND run_id IN :runs", "ids", "runs"
)
_NOTE_FULL = "UPDATE flowengine_server SET full_lists = %s WHERE uuid = %s RETURNING uuid"
_HELD_BY = statement(
    "SELECT boot_id, count(*) AS tries, count(DISTINCT run_id) AS runs FROM flowengine_task "
    f"WHERE {TASK_IS_RUNNING} AND boot_id IN :boots GROUP BY boot_id",
    "boots",
)
_ALL = statement(
    "SELECT name, max_tasks, max_workflows, actor, updated FROM flowengine_workerlimit"
)
_GET = statement("SELECT max_tasks, max_workflows FROM flowengine_workerlimit WHERE name = :name")
_NAMES = statement(
    "SELECT server_name AS name FROM flowengine_server UNION "
    f"SELECT name FROM flowengine_workerlimit ORDER BY name LIMIT {_MAX_NAMES}"
)
_IS_NAME = statement(
    "SELECT 1 FROM flowengine_server WHERE server_name = :name UNION "
    "SELECT 1 FROM flowengine_workerlimit WHERE name = :name"
)
_PUT = statement(
    "INSERT INTO flowengine_workerlimit (name, max_tasks, max_workflows, actor, updated) "
    "VALUES (:name, :tasks, :workflows, :actor, :now) ON CONFLICT (name) DO UPDATE SET "
    "max_tasks = excluded.max_tasks, max_workflows = excluded.max_workflows, "
    "actor = excluded.actor, updated = excluded.updated"
)
_REMOVE = statement("DELETE FROM flowengine_workerlimit WHERE name = :name")


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a server may hold; None: any number."""

    tasks: int | None = None  #: tries
    workflows: int | None = None  #: runs that it holds tries of

    def __bool__(self) -> bool:
        return self.tasks is not None or self.workflows is not None


@dataclass(frozen=True, slots=True)
class LimitedServer:
    """A registered server, as a claim reads it."""

    name: str
    limits: Limits
    full_lists: frozenset[str]  #: task lists whose wake-ups met it at its limit


@dataclass(frozen=True, slots=True)
class StoredLimits:
    """The limits that somebody has set for a name."""

    name: str
    limits: Limits
    actor: str
    updated: int


class WorkerLimits(Part):
    """Reads and writes the limits of workers."""

    def lock(self, identity: WorkerIdentity) -> None:
        """Lock the claims of a server until the end of the transaction."""
        session = self._session
        session.dialect.wait_for_lock(session.executor, f"claims:{identity.boot_id}")

    def of_server(self, server_id: str) -> LimitedServer | None:
        """Return the limits of a server; None if it is not registered."""
        for name, tasks, workflows, lists in self._session.rows(_OF_SERVER, (server_id,)):
            full = frozenset(codec.load(lists) if lists else ())
            return LimitedServer(name, Limits(tasks, workflows), full)
        return None

    def held(self, boot_id: str) -> dict[str, int]:
        """Return how many tries a server holds, by run."""
        return dict(self._session.rows(_HELD, (boot_id,)))

    def note_full(self, server_id: str, lists: Collection[str]) -> None:
        """Keep the task lists that are to be looked at when the server has room again."""
        text = codec.dump(sorted(lists)) if lists else None
        self._session.rows(_NOTE_FULL, (text, server_id))

    def due_of_runs(
        self, task_list: str, names: Collection[str], runs: Collection[str], tenant: str | None
    ) -> list[str]:
        """Return the most urgent due tasks of these runs, of these facets; some may be missing."""
        query = _DUE_OF_RUNS if tenant is None else _DUE_OF_TENANT
        about = {"task_list": task_list, "now": self._session.now()}
        about |= {} if tenant is None else {"tenant": tenant}
        values = {**about, "names": list(names), "runs": list(runs)}
        return list(self._session.execute(query, values).scalars())

    def of_runs(self, task_ids: Sequence[str], runs: Collection[str]) -> list[str]:
        """Return those of these tasks that belong to one of these runs, in their order."""
        rows = self._in_portions(_THESE_OF_RUNS, task_ids, runs=list(runs))
        found = {row.uuid for row in rows}
        return [task_id for task_id in task_ids if task_id in found]

    # --- for people ---

    def held_by(self, boot_ids: Collection[str]) -> dict[str, tuple[int, int]]:
        """Return the number of tries, and of their runs, that servers hold, by boot id."""
        rows = self._session.execute(_HELD_BY, {"boots": sorted(boot_ids)})
        return {row.boot_id: (row.tries, row.runs) for row in rows}

    def all(self) -> dict[str, StoredLimits]:
        return {
            row.name: StoredLimits(
                row.name, Limits(row.max_tasks, row.max_workflows), row.actor or "", row.updated
            )
            for row in self._session.execute(_ALL)
        }

    def get(self, name: str) -> Limits:
        row = self._session.execute(_GET, {"name": name}).first()
        return Limits() if row is None else Limits(row.max_tasks, row.max_workflows)

    def names(self) -> list[str]:
        """Return the names of servers, also of those that have ended."""
        return [row.name for row in self._session.execute(_NAMES)]

    def is_name(self, name: str) -> bool:
        return self._session.execute(_IS_NAME, {"name": name}).first() is not None

    def put(self, name: str, limits: Limits, actor: str, now: int) -> None:
        """Set the limits for a name; without any, its servers have those of their settings."""
        if not limits:
            self._session.execute(_REMOVE, {"name": name})
            return
        values = {"tasks": limits.tasks, "workflows": limits.workflows}
        self._session.execute(_PUT, {"name": name, **values, "actor": actor, "now": now})
