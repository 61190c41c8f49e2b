"""The catalogue of one database: `engine.catalogue`. Workflows are started by name, without code.

Workers publish what they have when they start. Only changed content is written, and the later
start wins. A workflow with problems keeps the program of its last version without.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from flowengine.engine.closed_workflows import ClosedWorkflows
from flowengine.engine.program_cache import PreparedProgram, ProgramCache
from flowengine.engine.publication_drafts import DOCUMENT
from flowengine.engine.publications import Publications
from flowengine.errors import InvalidDocument, UnpublishedWorkflow
from flowengine.errors.documents import DocumentProblem
from flowengine.store import Session, Store, codec
from flowengine.store.catalogue import WorkflowRecord

_PAGE = 1_000  #: rows that one statement reads
_COMPARED = 1_000  #: names that an unknown one is compared with


@dataclass(frozen=True, slots=True)
class WorkflowInfo:
    """A workflow of the catalogue as readers see it."""

    name: str
    source: str  #: python, afl, json, document or pushed
    place: str  #: the file, and the line
    description: str
    inputs: dict[str, Any]  #: their JSON Schema
    can_start: bool  #: some version of it had no problems
    problems: list[DocumentProblem]  #: of the newest version
    created: int
    updated: int


class Catalogue:
    """Reads and changes the catalogue of one database."""

    def __init__(
        self,
        database: Store,
        programs: ProgramCache,
        publications: Publications,
        closed: ClosedWorkflows,
    ) -> None:
        self._database, self._programs = database, programs
        self.close, self.open, self.closed = closed.close, closed.open, closed.list
        self._tenant = publications.tenant
        self.publish = publications.publish

    def list(self) -> list[WorkflowInfo]:
        """Return all workflows by name."""
        found: list[WorkflowInfo] = []
        while True:
            after = found[-1].name if found else ""
            with self._database.read() as session:
                page = [_info_of(record) for record in session.catalogue.page(after, _PAGE)]
            found += page
            if len(page) < _PAGE:
                return found

    def get(self, name: str) -> WorkflowInfo:
        """Return a workflow; raises UnpublishedWorkflow."""
        with self._database.read() as session:
            return _info_of(self._found(session, name))

    def remove(self, name: str) -> None:
        """Remove a workflow and its schedules: neither a name nor a tick starts it. Its runs stay.

        A worker that has it in its code publishes it again when it starts.
        """
        with self._database.write() as session:
            if not session.catalogue.remove(name):
                self._found(session, name)
            for each in session.schedules.of_workflow(name):
                if each.source == DOCUMENT or each.tenant == self._tenant:
                    session.schedules.remove(each.tenant, each.name)

    def prepared(self, name: str) -> PreparedProgram:
        """Return the program of a workflow; raises UnpublishedWorkflow, or InvalidDocument."""
        with self._database.read() as session:
            record = self._found(session, name)
            if record.program_hash is None:
                raise InvalidDocument(_info_of(record).problems)
            return self._programs.stored(session, record.program_hash)

    def _found(self, session: Session, name: str) -> WorkflowRecord:
        record = session.catalogue.get(name)
        if record is None:
            near = get_close_matches(name[:100], session.catalogue.names(_COMPARED), 1)
            raise UnpublishedWorkflow(name, f"; did you mean {near[0]!r}?" if near else "")
        return record


def _info_of(record: WorkflowRecord) -> WorkflowInfo:
    problems = [DocumentProblem(**each) for each in json.loads(record.problems or "[]")]
    return WorkflowInfo(
        record.name,
        record.source,
        record.place,
        record.description,
        codec.load(record.inputs),
        record.program_hash is not None,
        problems,
        record.created,
        record.updated,
    )
