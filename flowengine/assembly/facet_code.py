"""The code that a worker has for its facets: refused if another app has other code of one name.

Workers of one database run each other's runs: two apps that have different facets of one name would
execute each other's. A worker stores where the code of its facets is, and looks when it starts at
those of the other apps that live, and of those that have stopped while runs wait that call the
facet. Workers of one app are never compared: a deploy changes the code of its facets, and old and
new workers run side by side. Nor is one refused for its app's workers on another broker, to which
the app may be moving: that is a warning.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowengine.authoring import event_facet_named, event_facet_names, workflow_names
from flowengine.engine import Engine
from flowengine.engine.versions import Versions
from flowengine.program.standard import is_built_in
from flowengine.store.servers import ServerDefinition

log = logging.getLogger("flowengine")

_SHOWN = 3  #: facets that the error names
_LOCK = "facet_code"


@dataclass(frozen=True, slots=True)
class FacetCode:
    """Where the code of a facet is, and a digest of its text; empty without text."""

    module: str
    name: str
    line: int
    digest: str

    @property
    def place(self) -> str:
        return f"{self.module}:{self.line}"

    def is_other(self, of_others: FacetCode, *, has_own_broker: bool) -> bool:
        """Whether another app has a different facet, not another version of a shared one.

        Apps that share a broker share their workers and, where module and name are the same, their
        code: a deploy reaches one of them first.
        """
        if self.digest and self.digest == of_others.digest:
            return False
        is_elsewhere = (self.module, self.name) != (of_others.module, of_others.name)
        return is_elsewhere or (has_own_broker and bool(self.digest and of_others.digest))


def code_of_facets() -> dict[str, FacetCode]:
    """Return the code of the event facets of this process, by their names and aliases.

    Without durable functions, whose versions are facets of different names.
    """
    found = {}
    for name in event_facet_names():
        facet = event_facet_named(name)
        if facet is None or is_built_in(name) or facet.definition.function is not None:
            continue
        fn = inspect.unwrap(facet.definition.fn)
        module, qualname = str(getattr(fn, "__module__", "")), getattr(fn, "__qualname__", "")
        try:
            digest = hashlib.sha256(inspect.getsource(fn).encode()).hexdigest()[:12]
        except (OSError, TypeError):
            digest = ""
        found[name] = FacetCode(module, qualname, facet.definition.location.line, digest)
    return found


class FacetCodeCheck:
    """Stores the code of a registered worker, and compares it with that of the apps that live."""

    def __init__(self, server: ServerDefinition, timeout: float) -> None:
        self._server, self._timeout = server, round(timeout * 1000)
        self._is_done = False

    def is_refused(self, engine: Engine) -> bool:
        """Whether a worker of another app, which was there before, has other code. Logs it."""
        if self._is_done:
            return False
        own, server = code_of_facets(), self._server
        with engine.database.write() as session:
            now = session.now()
            # Of two that start at once, the second one reads the code of the first.
            session.locks.acquire(_LOCK, "", 0, now)
            others = session.servers.defined()
            living = [
                (other, conflicts)
                for other, stored in others
                if other.is_alive and now - other.ping_time <= self._timeout
                if (conflicts := list(_conflicts(server, own, other, stored)))
            ]
            refusing = [found for found in living if found[0].app != server.app]
            stopped = [] if refusing else self._stopped(own, others, {o.uuid for o, _ in living})
            names = {name for _, (name, *_) in stopped}
            waiting = Versions(engine.database, engine.programs).callers(
                session, names, workflow_names()
            )
            stopped = [found for found in stopped if found[1][0] in waiting]
            if not refusing and not stopped:
                rows = {name: list(_fields(code)) for name, code in own.items()}
                session.servers.define(server.uuid, rows)
        self._is_done = True
        for other, conflicts in refusing[:1]:
            self._refuse(other, conflicts)
        if not refusing and stopped:
            self._refuse_for_runs(stopped, waiting)
        if refusing or stopped:
            return True
        for other, conflicts in living:
            self._warn(other, conflicts)
        return False

    def _stopped(
        self, own: Mapping[str, FacetCode], others: Sequence[_Defined], living: Collection[str]
    ) -> list[tuple[ServerDefinition, _Conflict]]:
        """Return facets of which a worker of another app, which lives no more, had other code.

        Only if no worker has started since that has the facet: its app is the one whose it is.
        """
        last: dict[str, _Defined] = {}
        for defined in sorted(others, key=lambda found: (found[0].start_time, found[0].uuid)):
            last.update(dict.fromkeys(defined[1].keys() & own.keys(), defined))
        return [
            (other, conflict)
            for name, (other, stored) in sorted(last.items())
            if other.app != self._server.app and other.uuid not in living
            for conflict in _conflicts(self._server, {name: own[name]}, other, stored)
        ]

    def _refuse(self, other: ServerDefinition, conflicts: Sequence[_Conflict]) -> None:
        log.error(
            "worker %s of app %r is refused: worker %s of app %r is on the same database and has "
            "other code for facets of the same names (%s). Each would execute the runs of the "
            "other: rename the facets of one app, or give it a database or a schema of its own",
            self._server.server_name,
            self._server.app,
            other.server_name,
            other.app,
            _shown(conflicts),
            extra={"action": "facet_refused"},
        )

    def _refuse_for_runs(
        self, stopped: Sequence[tuple[ServerDefinition, _Conflict]], waiting: Mapping[str, str]
    ) -> None:
        other = stopped[0][0]
        conflicts = [conflict for found, conflict in stopped if found.app == other.app]
        log.error(
            "worker %s of app %r is refused: worker %s of app %r has stopped, had other code for "
            "facets of the same names (%s), and runs that call them are unfinished (%s). The code "
            "of app %r would execute them: rename the facets of one app, give it a database or a "
            "schema of its own, or end these runs. If the app was renamed from %r, start a worker "
            "of the new code under the old name once",
            self._server.server_name,
            self._server.app,
            other.server_name,
            other.app,
            _shown(conflicts),
            waiting[conflicts[0][0]],
            self._server.app,
            other.app,
            extra={"action": "facet_refused"},
        )

    def _warn(self, other: ServerDefinition, conflicts: Sequence[_Conflict]) -> None:
        log.warning(
            "worker %s of app %r has another broker than worker %s on the same database, and other "
            "code for facets of the same names (%s). Each executes the runs of the other: right if "
            "the app moves to another broker; two apps need different names, and are refused then",
            self._server.server_name,
            self._server.app,
            other.server_name,
            _shown(conflicts),
            extra={"action": "facet_differs"},
        )


_Conflict = tuple[str, FacetCode, FacetCode]
_Defined = tuple[ServerDefinition, Mapping[str, Any]]


def _shown(conflicts: Sequence[_Conflict]) -> str:
    shown = "; ".join(
        f"{name!r} is at {own.place} here, and at {theirs.place} there"
        for name, own, theirs in conflicts[:_SHOWN]
    )
    more = len(conflicts) - _SHOWN
    return f"{shown}; and {more} more" if more > 0 else shown


def _conflicts(
    server: ServerDefinition,
    own: Mapping[str, FacetCode],
    other: ServerDefinition,
    stored: Mapping[str, Any],
) -> Iterator[_Conflict]:
    """Return the facets of which both have different ones, with both places."""
    has_own_broker = server.broker != other.broker
    if server.app == other.app and not has_own_broker:
        return
    for name, code in own.items():
        if name in stored:
            theirs = FacetCode(*stored[name])
            if code.is_other(theirs, has_own_broker=has_own_broker):
                yield name, code, theirs


def _fields(code: FacetCode) -> tuple[str, str, int, str]:
    return code.module, code.name, code.line, code.digest
