"""Retention of agents: remove their ended turns by age, and the profiles that no turn has."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from flowengine.settings import Settings
from flowengine.store import Store

_TURNS = 200  #: turns, or profiles, that one look finds


@dataclass(frozen=True, slots=True)
class PurgeResult:
    """The number of rows that a purge has removed, or would remove."""

    runs: int = 0  #: in a dry run without their child runs
    steps: int = 0
    rows: int = 0  #: of all tables but those of runs, values and programs
    values: int = 0  #: large values that no other run has
    programs: int = 0
    turns: int = 0  #: of agents
    is_complete: bool = True  #: False: the time was up

    def plus(self, other: PurgeResult) -> PurgeResult:
        return PurgeResult(
            self.runs + other.runs,
            self.steps + other.steps,
            self.rows + other.rows,
            self.values + other.values,
            self.programs + other.programs,
            self.turns + other.turns,
            self.is_complete and other.is_complete,
        )


class TurnPurger:
    """Removes turns; `remove_marked` removes the large values of removed rows."""

    def __init__(
        self,
        database: Store,
        settings: Settings,
        remove_marked: Callable[[float | None], PurgeResult],
    ) -> None:
        self._database, self._remove_marked = database, remove_marked
        self._project = settings.tenant or None

    def count(self, before: int) -> PurgeResult:
        """Return the number of turns that a purge would remove."""
        with self._database.read() as session:
            return PurgeResult(turns=session.agent_purge.count(before, self._project))

    def remove(self, before: int, seconds: float | None) -> PurgeResult:
        """Remove the turns that ended before that time, then the profiles without turns."""
        until = None if seconds is None else time.monotonic() + seconds
        done, busy = PurgeResult(), 0
        while until is None or time.monotonic() < until:
            with self._database.read() as session:
                # Behind those of agents that are locked: the next purge finds them again.
                found = session.agent_purge.ended(before, self._project, busy + _TURNS)[busy:]
            if not found:
                return done.plus(self._remove_profiles(before, until))
            by_agent: dict[tuple[str, str], list[str]] = {}
            for turn in found:
                by_agent.setdefault((turn.project, turn.agent), []).append(turn.id)
            for (of_project, agent), turn_ids in by_agent.items():
                with self._database.write() as session:
                    removed = session.agent_purge.remove(of_project, agent, turn_ids)
                busy += len(turn_ids) - removed.turns
                done = done.plus(PurgeResult(turns=removed.turns, rows=removed.rows))
            done = done.plus(self._remove_marked(until))
        return done.plus(PurgeResult(is_complete=False))

    def _remove_profiles(self, before: int, until: float | None) -> PurgeResult:
        """Remove profiles of agents that no turn has any more."""
        done = PurgeResult()
        while until is None or time.monotonic() < until:
            with self._database.write() as session:
                removed = session.agent_purge.remove_profiles(before, self._project, _TURNS)
            if not removed:
                return done.plus(self._remove_marked(until))
            done = done.plus(PurgeResult(rows=removed))
        return done.plus(PurgeResult(is_complete=False))
