"""The programs of unfinished runs, and their differences from the code of this process."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from flowengine.engine.program_cache import ProgramCache
from flowengine.program import Program
from flowengine.program.differences import Difference, FacetCode, changed_facets, refused_calls
from flowengine.store import Session, Store
from flowengine.tenants import visible_tenant


@dataclass(frozen=True, slots=True)
class ProgramDifference:
    """A stored program of unfinished runs that is not that of today's code."""

    workflow: str
    program_hash: str
    runs: int  #: unfinished
    run: str  #: the id of one of them
    is_known: bool  #: whether today's code has the workflow
    is_same: bool  #: whether new runs would have this program
    changes: list[Difference] = field(default_factory=list)
    refused: list[Difference] = field(default_factory=list)  #: calls that the code does not take

    @property
    def breaks(self) -> bool:
        return any(difference.breaks for difference in self.refused)


class Versions:
    def __init__(self, database: Store, programs: ProgramCache, tenant: str = "") -> None:
        self._database, self._programs, self._bound = database, programs, tenant

    def differences(
        self,
        programs: Mapping[str, Program],
        code: Mapping[str, FacetCode],
        *,
        workflow: str | None = None,
        tenant: str | None = None,
    ) -> list[ProgramDifference]:
        """Compare the program of every unfinished run with today's code.

        `programs` are those of today's workflows by name, `code` its event facets. Runs of one
        program are one entry; programs that are the same and are taken whole are listed too.
        """
        found = []
        with self._database.read() as session:
            rows = session.runs.live_programs(visible_tenant(self._bound, tenant), workflow)
            for name, digest, runs, run_id in rows:
                stored = self._programs.plan(session, digest)
                today = programs.get(name)
                prepared = None if today is None else self._programs.prepare(today)
                is_same = prepared is not None and prepared[0] == digest
                changes = []
                if prepared is not None and not is_same:
                    changes = list(changed_facets(stored, prepared[2]))
                refused = list(refused_calls(stored, code))
                is_known = prepared is not None
                about = (name, digest, runs, run_id, is_known, is_same)
                found.append(ProgramDifference(*about, changes, refused))
        return found

    def callers(
        self, session: Session, facets: Collection[str], known: Collection[str]
    ) -> dict[str, str]:
        """Return of each of these facets an unfinished run that may call it: id and workflow.

        Without runs of `known` workflows. The program of a durable function does not tell.
        """
        found: dict[str, str] = {}
        if facets:
            for name, digest, _, run_id in session.runs.live_programs(None, None):
                if name not in known:
                    called = self._programs.plan(session, digest).facets
                    is_function = any(facet.function for facet in called.values())
                    calls = facets if is_function else called.keys() & facets
                    found |= dict.fromkeys(calls, f"{run_id} of {name}")
        return found
