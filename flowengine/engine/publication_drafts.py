"""Drafts of publications: workflows in the form in which the catalogue stores them.

A publication that cannot be stored (too large, or with text that no database takes) becomes a
broken one, which always can.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from flowengine.engine.program_cache import ProgramCache
from flowengine.engine.schedule_definitions import ScheduleDefinitions
from flowengine.errors.documents import DocumentProblem
from flowengine.printable import printable
from flowengine.program import Program
from flowengine.program.json_schemas import object_schema
from flowengine.program.limits import clipped
from flowengine.program.plan import FacetPlan
from flowengine.program.serializer import text_hash
from flowengine.scheduling import Schedule
from flowengine.store import codec
from flowengine.store.catalogue import WorkflowRecord
from flowengine.store.failures import is_unavailable

DOCUMENT = "document"  #: the source of workflows of a folder, and of schedules of all documents
PUSHED = "pushed"  #: the source of workflows that `flowengine push` has published
_LONGEST = 4_000  #: characters of a description
_MAX_NAME = 255  #: characters of a name in the tables


@dataclass(frozen=True)
class Publication:
    """A workflow to be published; without a program, only its problems are."""

    name: str
    program: Program | Mapping[str, Any] | None
    source: str
    place: str
    description: str = ""
    problems: Sequence[DocumentProblem] = ()
    schedules: Sequence[Schedule] | None = None  #: all that a document has; None: not told
    is_new: bool = True  #: False: this process has published it, and only names it


@dataclass(frozen=True)
class Folder:
    """The place whose documents a publication has completely; those missing in it are gone."""

    source: str
    place: str  #: the beginning of the places of its documents
    removable: Collection[str] = ()  #: names that are removed if they are missing
    unlisted: Collection[str] = ()  #: how names of documents begin that may be there, unseen


@dataclass
class Published:
    """The names that a publication has changed."""

    written: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  #: stored, but no more in the folder
    #: By name: documents that are not stored as they are written; they are listed as broken.
    refused: dict[str, DocumentProblem] = field(default_factory=dict)
    is_repeatable: bool = False  #: the database has refused one, and may store it later


@dataclass(frozen=True)
class Draft:
    """A publication in its stored form."""

    record: WorkflowRecord
    text: str  #: of the program
    schedules: dict[str, tuple[Schedule, str]] | None  #: by name, with the stored form

    def stored_schedules(self) -> set[tuple[str, str, str]] | None:
        """Return name, definition and program of each schedule; None: they are not told."""
        if self.schedules is None:
            return None
        digest = self.record.program_hash or ""
        return {(name, text, digest) for name, (_, text) in self.schedules.items()}


class Drafts:
    """Makes drafts; it asks no database."""

    def __init__(self, programs: ProgramCache, definitions: ScheduleDefinitions) -> None:
        self._programs, self._definitions = programs, definitions

    def of(self, name: str, found: Publication, changes: Published) -> Draft:
        try:
            return self._made(name, found)
        except Exception as problem:
            if is_unavailable(problem):
                raise
            # Too large, with scripts, or with text that no database stores.
            return self._made(name, broken(found, str(problem), changes))

    def _made(self, name: str, found: Publication) -> Draft:
        digest, text, inputs, schedules = None, "", "{}", None
        if found.program is not None:
            digest, text, plan = self._programs.prepare(found.program)
            inputs = codec.dump(input_schema(plan.workflow(found.name)))
            if found.schedules is not None:
                schedules = dict(self._schedules(name, found.schedules))
        listed = [asdict(each) for each in found.problems]
        problems = json.dumps(listed) if listed else None
        about, place = clipped(found.description, _LONGEST), found.place
        if found.program is None:
            about, place = printable(about, lines=True), printable(place)
        else:
            _check_text("description", about)
            _check_text("path", place)
            if len(found.name) > _MAX_NAME:
                raise ValueError(f"the name of a workflow has at most {_MAX_NAME} characters")
        content = json.dumps([digest, inputs, found.source, place, about, problems])
        own = (text_hash(content), found.source, place, about, inputs, problems)
        return Draft(WorkflowRecord(name, digest, *own, 0, 0), text, schedules)

    def _schedules(
        self, workflow: str, schedules: Iterable[Schedule]
    ) -> Iterator[tuple[str, tuple[Schedule, str]]]:
        for schedule in schedules:
            name = schedule.name or workflow
            _check_text("name of a schedule", name)
            definition = self._definitions.text(name, schedule)
            _check_text("schedule", definition)
            yield name, (schedule, definition)


def broken(found: Publication, what: str, changes: Published) -> Publication:
    """Return a publication as broken: its last version, and the schedules of that, are kept."""
    place = printable(found.place)
    told = DocumentProblem(place, 1, 1, printable(clipped(what)))
    if found.schedules is not None:  # a document, whose author is told
        changes.refused[stored_name(found.name)] = told
    problems = [*found.problems, told]
    return replace(
        found, program=None, place=place, description="", problems=problems, schedules=None
    )


def stored_name(name: str) -> str:
    """Return a name that can be stored, of whatever path it was made."""
    return printable(name)[:_MAX_NAME]


def _check_text(what: str, text: str) -> None:
    """Refuse characters that no database stores: U+0000 and lone surrogates."""
    for character in text:
        if character == "\0" or "\ud800" <= character <= "\udfff":
            raise ValueError(f"the {what} has the character U+{ord(character):04X}: remove it")


def input_schema(facet: FacetPlan) -> dict[str, Any]:
    """Return the JSON Schema of the inputs of a workflow."""
    schema: dict[str, Any] = object_schema(facet.params, facet.schemas, nullable=True)
    required = [name for name in schema.get("required", ()) if name not in facet.defaults]
    return {**schema, "required": required}
