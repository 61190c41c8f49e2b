"""Alarms of runs: set in the database, and told once when they begin.

An alarm begins when a run has none of its kind. Then it is one WARNING in the log and, if the
setting `hook_events` names `run_alarm`, a notice in the outbox, written by the same transaction.
Recovery sets standing alarms again, and a commit from a stale cache may have removed one: neither
begins anew.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from flowengine.store import Session, Store
from flowengine.store.outbox import RUN_ALARM

log = logging.getLogger("flowengine")

EVENT = "run_alarm"
_LISTED = 3  #: runs that a line about several names
_MAX_REMEMBERED = 10_000


class Alarms:
    """Shared by all threads of a process."""

    def __init__(self, database: Store) -> None:
        self._database = database
        self._standing: dict[str, frozenset[str]] = {}  #: by kind: runs that recovery has told of

    def begin(self, kind: str, alarms: Mapping[str, str]) -> None:
        """Set alarms, by run id; `kind` is the text with which each of them begins."""
        by_text: dict[str, list[str]] = {}
        for run_id, text in sorted(alarms.items()):
            by_text.setdefault(text, []).append(run_id)
        known = self._standing.get(kind, frozenset())
        begun: dict[str, list[tuple[str, str]]] = {}
        standing: dict[str, str | None] = dict(alarms)
        with self._database.write() as session:
            for text, run_ids in by_text.items():
                found = session.recovery.begin_alarms(text, run_ids, kind)
                begun[text] = [(run_id, name) for run_id, name in found if run_id not in known]
                for run_id, _ in found:
                    del standing[run_id]
            if standing:  # they may have another text of this kind
                session.recovery.set_alarms(standing)
            self._add_notices(session, [run_id for runs in begun.values() for run_id, _ in runs])
        for text, runs in begun.items():
            self._log(text, runs)

    def keep(self, kind: str, old: Mapping[str, str], new: Mapping[str, str]) -> None:
        """Replace the standing alarms of a kind by those that a recovery pass has found."""
        if new != old:
            if removed := old.keys() - new.keys():
                self.clear(removed)
            if new:
                self.begin(kind, new)
        self._standing[kind] = frozenset(sorted(new)[:_MAX_REMEMBERED])

    def clear(self, run_ids: Collection[str]) -> None:
        with self._database.write() as session:
            session.recovery.set_alarms(dict.fromkeys(run_ids))

    def tell(self, run_id: str, workflow: str, text: str) -> None:
        """Tell of an alarm that a commit of the run has set."""
        if self._is_delivered():
            with self._database.write() as session:
                self._add_notices(session, [run_id])
        self._log(text, [(run_id, workflow)])

    def _is_delivered(self) -> bool:
        rule = self._database.outbox_rule
        return rule is not None and EVENT in rule.events

    def _add_notices(self, session: Session, run_ids: list[str]) -> None:
        rule = self._database.outbox_rule
        if run_ids and rule is not None and EVENT in rule.events:
            session.outbox.add_notices(run_ids, RUN_ALARM, rule.sinks, session.now())

    def _log(self, text: str, runs: list[tuple[str, str]]) -> None:
        if not runs:
            return
        named = ", ".join(f"{run_id} ({workflow})" for run_id, workflow in runs[:_LISTED])
        more = f" and {len(runs) - _LISTED} more runs" if len(runs) > _LISTED else ""
        log.warning(
            "alarm of %s %s%s: %s",
            "run" if len(runs) == 1 else "runs",
            named,
            more,
            text,
            extra={"action": "run_alarm", "run": runs[0][0], "workflow": runs[0][1]},
        )
