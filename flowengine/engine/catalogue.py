"""The catalogue of one database: `engine.catalogue`. Workflows are started by name, without code.

Workers publish what they have when they start. Only changed content is written, and the later
start wins. A workflow with problems keeps the program of its last version without.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from typing import Any

from flowengine.engine.program_cache import PreparedProgram, ProgramCache
from flowengine.errors import InvalidDocument, ProgramError, UnpublishedWorkflow
from flowengine.errors.documents import DocumentProblem
from flowengine.program import Program
from flowengine.program.json_schemas import object_schema
from flowengine.program.limits import clipped
from flowengine.program.plan import FacetPlan
from flowengine.program.serializer import text_hash
from flowengine.store import Session, Store, codec
from flowengine.store.catalogue import WorkflowRecord

_MANY = 10_000
_LONGEST = 4_000  #: characters of a description


@dataclass(frozen=True)
class Publication:
    """A workflow to be published; without a program, only its problems are."""

    name: str
    program: Program | Mapping[str, Any] | None
    source: str
    place: str
    description: str = ""
    problems: Sequence[DocumentProblem] = ()


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


@dataclass
class Published:
    """The names that a publication has changed."""

    written: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


class Catalogue:
    """Reads and changes the catalogue of one database."""

    def __init__(self, database: Store, programs: ProgramCache) -> None:
        self._database, self._programs = database, programs

    def publish(
        self, found: Collection[Publication], *, source: str = "", folder: str = ""
    ) -> Published:
        """Write what differs from the catalogue: one statement if nothing does.

        With `folder`, workflows of the source that were published from there, and are not among
        these, are removed.
        """
        records = {each.name: self._record(each) for each in found}
        names = sorted(records)
        with self._database.read() as session:
            stored = session.catalogue.digests(names, source if folder else "", folder)
        changes = Published([n for n in names if stored.get(n) != records[n][0].digest])
        changes.removed = sorted(stored.keys() - records.keys()) if folder else []
        if changes.written or changes.removed:
            with self._database.write() as session:
                now = session.now()
                for name in changes.written:
                    record, text = records[name]
                    if record.program_hash is not None:
                        session.payloads.save_program(record.program_hash, text, now)
                    session.catalogue.put(record._replace(created=now, updated=now))
                for name in changes.removed:
                    session.catalogue.remove(name)
        return changes

    def _record(self, found: Publication) -> tuple[WorkflowRecord, str]:
        digest, text, inputs, listed = None, "", "{}", list(found.problems)
        try:
            if found.program is not None:
                digest, text, plan = self._programs.prepare(found.program)
                inputs = codec.dump(input_schema(plan.workflow(found.name)))
        except ProgramError as problem:  # one that is too large, or has scripts
            listed.append(DocumentProblem(found.place, 1, 1, str(problem)))
        problems = json.dumps([asdict(each) for each in listed]) if listed else None
        about = clipped(found.description, _LONGEST)
        content = json.dumps([digest, inputs, found.source, found.place, about, problems])
        own = (text_hash(content), found.source, found.place, about, inputs, problems)
        return WorkflowRecord(found.name, digest, *own, 0, 0), text

    def list(self) -> list[WorkflowInfo]:
        """Return all workflows by name."""
        with self._database.read() as session:
            return [_info_of(record) for record in session.catalogue.page("", _MANY)]

    def get(self, name: str) -> WorkflowInfo:
        """Return a workflow; raises UnpublishedWorkflow."""
        with self._database.read() as session:
            return _info_of(self._found(session, name))

    def remove(self, name: str) -> None:
        """Remove a workflow: it cannot be started by name. Its runs stay.

        A worker that has it in its code publishes it again when it starts.
        """
        with self._database.write() as session:
            if not session.catalogue.remove(name):
                self._found(session, name)

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
            known = [each.name for each in session.catalogue.page("", 1_000)]
            near = get_close_matches(name[:100], known, 1)
            raise UnpublishedWorkflow(name, f"; did you mean {near[0]!r}?" if near else "")
        return record


def input_schema(facet: FacetPlan) -> dict[str, Any]:
    """Return the JSON Schema of the inputs of a workflow."""
    schema: dict[str, Any] = object_schema(facet.params, facet.schemas, nullable=True)
    required = [name for name in schema.get("required", ()) if name not in facet.defaults]
    return {**schema, "required": required}


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
