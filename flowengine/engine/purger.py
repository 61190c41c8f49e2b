"""Retention: remove ended runs by age and the filters of lists, in small transactions."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Unpack

from flowengine import retention
from flowengine.engine.filter_values import age_of
from flowengine.engine.log_store import LogStore
from flowengine.engine.run_filters import EndedFilters, ended, refuse_empty
from flowengine.engine.run_pages import read_all
from flowengine.engine.turn_purger import PurgeResult, TurnPurger
from flowengine.errors import InvalidFilter
from flowengine.evaluator.states import RunState
from flowengine.settings import Settings
from flowengine.store import Session, Store
from flowengine.store.purge import Root
from flowengine.store.run_lists import RunFilter
from flowengine.store.servers import ServerState

log = logging.getLogger("flowengine")

_ROOTS = 200  #: runs that one transaction removes
_STEPS = 5_000  #: steps of these runs, unless one run has more
_ROWS = 2_000  #: rows of each table that one transaction removes
_CHUNKS = 200  #: of logs, up to 64 KiB each, that one transaction removes
_VALUES = 200  #: large values that one transaction removes
_PAUSE = 0.05  #: seconds, until the references may be locked
_MAX_PAUSE = 10.0  #: seconds between two transactions
_TRIES = 40
_DAY = 86_400_000  #: milliseconds
_REMOVAL_INTERVAL = 600  #: seconds
_GRACE = 3_600_000  #: after a result has expired: the commit of a step that read it may be late
_LEASE, _PROGRAMS, _TOLD = "purge", "purge.programs", "purge.told"


class Purger:
    def __init__(self, database: Store, settings: Settings, logs: LogStore) -> None:
        self._database, self._settings, self._logs = database, settings, logs
        self._turns = TurnPurger(database, settings, self._remove_marked)
        self._next_removal = time.monotonic() + _REMOVAL_INTERVAL
        self._next_purge: int | None = None  #: when this process looks at the retention next
        self._last_key = ""  #: behind which keys of limits are looked at next

    def purge(
        self,
        *,
        older_than: timedelta | float,
        dry_run: bool = False,
        seconds: float | None = None,
        **filters: Unpack[EndedFilters],
    ) -> PurgeResult:
        """Remove runs that ended longer ago than that, with their child runs and all their rows.

        `older_than` is a timedelta, or a number of seconds. Without `state`, runs in every final
        state. The other filters are those of a list, for runs that no other has started. An open
        run, and one with an open child run, is never removed. With `seconds` it stops after that
        time; a second call continues.
        """
        refuse_empty(filters)
        others: dict[str, Any] = {**filters}
        states = _final(others.pop("state", None))
        with self._database.read() as session:
            before = session.now() - age_of("older_than", older_than)
            if others:
                wanted = ended(session, self._settings.tenant, states, before, others)
        if others:
            return self._apply([], dry_run, seconds, wanted)
        tenant = self._settings.tenant or None
        rules = [{"state": each, "before": before, "tenant": tenant} for each in states]
        return self._apply(rules, dry_run, seconds)

    def purge_due(self, seconds: float) -> None:
        """Do `purge_expired`, once per `purge_interval` of this process: it begins with a write.

        With the default retention not in the first interval: a short process pays nothing.
        """
        now, pause = self._database.now(), round(self._settings.purge_interval * 1000)
        if self._next_purge is None:
            is_default = self._settings.retention == retention.DEFAULT
            self._next_purge = now + pause if is_default else now
        if 0 < self._next_purge - now <= pause:  # more: the clock was set back
            return
        done = self.purge_expired(seconds)
        if done is None or done.is_complete:
            self._next_purge = now + pause

    def purge_expired(self, seconds: float) -> PurgeResult | None:
        """Apply `retention` and `turn_retention`, at most once per `purge_interval` in the fleet.

        Returns None if there is nothing to do. A purge that was not complete continues at once.
        A retention that nobody has set is told first, and applied from a day later on.
        """
        ages = retention.rules_of(self._settings.retention)
        turns = self._settings.turn_retention
        if not ages and not turns:
            return None
        with self._database.write() as session:
            now = session.now()
            pause = round(self._settings.purge_interval * 1000)
            if not session.locks.acquire(_LEASE, uuid.uuid4().hex, pause, now):
                return None
            if self._settings.retention == retention.DEFAULT and not self._is_told(session, now):
                ages = {}
        tenant = self._settings.tenant or None
        rules = [
            {"state": state, "before": now - age, "tenant": tenant} for state, age in ages.items()
        ]
        done = self._apply(rules, False, seconds)
        if turns:
            done = done.plus(self._turns.remove(now - retention.age_of(turns), seconds))
        if done.turns:
            log.info(
                "removed %d turns of agents, older than %s",
                *(done.turns, turns),
                extra={"action": "turns_purged"},
            )
        if done.runs:
            log.info(
                "removed %d runs with %d steps, older than %s",
                *(done.runs, done.steps, self._settings.retention),
                extra={"action": "purged"},
            )
        if not done.is_complete:
            with self._database.write() as session:
                session.locks.expire(_LEASE)
        return done

    def _is_told(self, session: Session, now: int) -> bool:
        """Tell once in a database how long ended runs are kept; true from a day later on."""
        until = session.locks.ends(_TOLD)
        if not until:
            session.locks.acquire(_TOLD, "", _DAY, now)
            log.warning(
                "ended runs are removed with their keys, from tomorrow on: %s. To keep them for "
                "ever set FLOWENGINE_RETENTION=never, or other ages",
                self._settings.retention,
                extra={"action": "retention_told"},
            )
        return 0 < until <= now

    def purge_turns(
        self, *, older_than: timedelta | float, dry_run: bool = False, seconds: float | None = None
    ) -> PurgeResult:
        """Remove turns of agents that ended longer ago than that, and agents without other turns.

        An agent that has a later turn keeps its memory: the cards of its earlier turns. The runs
        of a turn's calls are runs, and removed like others.
        """
        with self._database.read() as session:
            before = session.now() - age_of("older_than", older_than)
        return self._turns.count(before) if dry_run else self._turns.remove(before, seconds)

    def remove_expired(self, seconds: float, *, now: bool = False) -> PurgeResult:
        """Remove expired results and locks, idle keys, old ticks and logs, whatever their runs do.

        Once in ten minutes of this process, and not in its first: a short process pays nothing.
        """
        if not now and time.monotonic() < self._next_removal:
            return PurgeResult()
        self._next_removal = time.monotonic() + _REMOVAL_INTERVAL
        until = time.monotonic() + seconds
        done = self._remove_cached(until).plus(self._remove_idle_keys(until))
        done = done.plus(self._remove_expired_locks()).plus(self._remove_ticks(until))
        return done.plus(self._remove_logs(until))

    def remove_orphans(self, run_ids: Sequence[str]) -> PurgeResult:
        """Remove the rows of runs that have no row of their own."""
        with self._database.write() as session:
            session.purge.mark(run_ids)
        return self._remove_marked(None)

    # --- in portions ---

    def _apply(
        self,
        rules: Sequence[dict[str, Any]],
        dry_run: bool,
        seconds: float | None,
        wanted: Sequence[RunFilter] = (),
    ) -> PurgeResult:
        until = None if seconds is None else time.monotonic() + seconds
        done = PurgeResult()
        rules = [{**rule, "of_agents": each} for rule in rules for each in (False, True)]
        if dry_run:
            with self._database.read() as session:
                for rule in rules:
                    runs, steps = session.purge.count(rule)
                    done = done.plus(PurgeResult(runs, steps))
            for chosen in self._chosen(wanted):
                steps = sum(root.step_count for root in chosen)
                done = done.plus(PurgeResult(len(chosen), steps))
            return done
        done = self._remove_marked(until)  # of a purge that ended early
        for rule in rules:
            done = done.plus(self._apply_rule(rule, until))
        done = done.plus(self._remove_chosen(wanted, until))
        done = done.plus(self._remove_cached(until)).plus(self._remove_idle_keys(until))
        done = done.plus(self._remove_expired_locks()).plus(self._remove_ticks(until))
        return done.plus(self._remove_logs(until)).plus(self._remove_leftovers())

    def _remove_cached(self, until: float | None) -> PurgeResult:
        """Remove results of the cache that nobody reads any more."""
        done = PurgeResult()
        while until is None or time.monotonic() < until:
            with self._database.write() as session:
                found = session.purge.remove_cached(session.now() - _GRACE, _ROOTS)
            if not found:
                return done
            done = done.plus(PurgeResult(rows=len(found)))
            done = done.plus(self._remove_marked(until))
        return done.plus(PurgeResult(is_complete=False))

    def _remove_idle_keys(self, until: float | None) -> PurgeResult:
        """Remove keys of limits and rates that no run of the last day has used."""
        done = PurgeResult()
        while until is None or time.monotonic() < until:
            with self._database.write() as session:
                now = session.now()
                page = session.idle_keys.remove(self._last_key, now - _DAY, now)
            self._last_key = page.last
            done = done.plus(PurgeResult(rows=page.removed))
            if not page.last:
                return done
        return done.plus(PurgeResult(is_complete=False))

    def _remove_expired_locks(self) -> PurgeResult:
        """Remove locks whose holder neither released nor acquired them again for a day."""
        with self._database.write() as session:
            removed = session.work_locks.remove_expired(session.now() - _DAY, _ROWS)
        return PurgeResult(rows=removed)

    def _remove_ticks(self, until: float | None) -> PurgeResult:
        """Remove the outcomes of ticks of schedules, by the setting `tick_retention`."""
        done, kept = PurgeResult(), self._settings.tick_retention
        while kept and (until is None or time.monotonic() < until):
            with self._database.write() as session:
                before = session.now() - retention.age_of(kept)
                removed = session.schedules.remove_ticks(before, _ROWS)
            done = done.plus(PurgeResult(rows=removed))
            if removed < _ROWS:
                return done
        return done.plus(PurgeResult(is_complete=not kept))

    def _remove_logs(self, until: float | None) -> PurgeResult:
        """Remove lines that steps have written, by the setting `log_retention`."""
        done, kept = PurgeResult(), self._settings.log_retention
        while kept and (until is None or time.monotonic() < until):
            before = self._database.now() - retention.age_of(kept)
            removed = self._logs.remove_before(before, _CHUNKS)
            done = done.plus(PurgeResult(rows=removed))
            if removed < _CHUNKS:
                return done
        return done.plus(PurgeResult(is_complete=not kept))

    def _apply_rule(self, rule: dict[str, Any], until: float | None) -> PurgeResult:
        done, last = PurgeResult(), None
        while until is None or time.monotonic() < until:
            with self._database.read() as session:
                found = session.purge.roots(rule, last, _ROOTS)
            if not found:
                return done
            portion = _portion(found)
            done = done.plus(self._remove_roots(portion, until))
            last = portion[-1]
        return done.plus(PurgeResult(is_complete=False))

    def _remove_chosen(self, wanted: Sequence[RunFilter], until: float | None) -> PurgeResult:
        done = PurgeResult()
        for chosen in self._chosen(wanted):
            left = chosen
            while left:
                if until is not None and time.monotonic() >= until:
                    return done.plus(PurgeResult(is_complete=False))
                portion = _portion(left[:_ROOTS])
                done = done.plus(self._remove_roots(portion, until))
                left = left[len(portion) :]
        return done

    def _chosen(self, wanted: Sequence[RunFilter]) -> Iterator[list[Root]]:
        """Yield the runs of lists that no other has started, a page at a time."""
        for each in wanted:
            for ids in read_all(self._database, each, None):
                with self._database.read() as session:
                    roots = session.purge.among(ids)
                yield roots

    def _remove_roots(self, portion: Sequence[Root], until: float | None) -> PurgeResult:
        with self._database.write() as session:
            removed, below = session.purge.remove_runs([root.id for root in portion])
        gone = set(removed)
        steps = below + sum(root.step_count for root in portion if root.id in gone)
        return PurgeResult(len(removed), steps).plus(self._remove_marked(until))

    def _remove_marked(self, until: float | None) -> PurgeResult:
        """Remove the other rows of removed runs. Several processes may do it at once."""
        done = PurgeResult()
        while until is None or time.monotonic() < until:
            with self._database.read() as session:
                run_ids = session.purge.marked(_ROOTS)
            if not run_ids:
                return done
            began = time.monotonic()
            with self._database.write() as session:
                removed = session.purge.remove_rows(run_ids, _ROWS)
            done = done.plus(PurgeResult(rows=removed))
            if (
                removed >= _ROWS and until is None
            ):  # recovery, which has others to do, pauses itself
                time.sleep(_pause(time.monotonic() - began, self._settings.purge_load))
            if not removed:
                done = done.plus(PurgeResult(values=self._remove_values(run_ids)))
        return done.plus(PurgeResult(is_complete=False))

    def _remove_values(self, run_ids: Sequence[str]) -> int:
        """Remove the large values of removed runs, each run by itself if they have many."""
        for _ in range(_TRIES):
            with self._database.write() as session:
                removed = session.purge.remove_values(run_ids, _VALUES)
            if removed is not None:
                return removed
            if len(run_ids) > 1:
                return sum(self._remove_values([run_id]) for run_id in run_ids)
            time.sleep(_PAUSE)  # a commit with large values is being written
        return 0

    def _remove_leftovers(self) -> PurgeResult:
        """Remove programs without runs, and traces of servers that ended; once a day."""
        with self._database.write() as session:
            now = session.now()
            if not session.locks.acquire(_PROGRAMS, uuid.uuid4().hex, _DAY, now):
                return PurgeResult()
            programs = session.purge.remove_programs(now - _DAY)
            session.purge.remove_slots(now)
            session.purge.remove_servers(ServerState.ENDED, now - _DAY)
            alive = {server.boot_id for server in session.servers.alive()}
            alive |= set(session.recovery.last_signs(alive))
        _remove_markers(Path(self._settings.spool_directory), alive)
        return PurgeResult(programs=programs)


def _pause(worked: float, load: float) -> float:
    """Return the seconds after a transaction of that length in which runs have the database."""
    return min(worked * (1 / load - 1), _MAX_PAUSE)


def _portion(found: Sequence[Root]) -> list[Root]:
    """Return the first runs whose steps fit one transaction, at least one run."""
    steps = 0
    portion: list[Root] = []
    for root in found:
        steps += root.step_count
        if portion and steps > _STEPS:
            break
        portion.append(root)
    return portion


def _remove_markers(spool: Path, alive: set[str]) -> None:
    """Remove in-flight markers of servers that neither live nor hold a task, a day after.

    Reports in the spool stay: they are delivered, or set aside, by the next process.
    """
    limit = time.time() - _DAY / 1000
    for path in spool.glob("in-flight/*-*"):
        try:
            if path.name.partition("-")[0] not in alive and path.stat().st_mtime < limit:
                path.unlink(missing_ok=True)
        except OSError as problem:
            log.debug("in-flight marker %s was not removed: %s", path, problem)


def _final(state: str | Sequence[str] | None) -> list[str]:
    if state is None:
        return sorted(RunState.FINAL)
    states = [state] if isinstance(state, str) else list(state)
    for each in states:
        if each not in RunState.FINAL:
            expected = f"one of {', '.join(sorted(RunState.FINAL))}: open runs are not removed"
            raise InvalidFilter.of("state", each, expected)
    return states
