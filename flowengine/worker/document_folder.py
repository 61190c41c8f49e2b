"""A folder of documents: each file is a workflow, named by its path; a broken one stops alone.

Names of event facets and of workflows in Python are those of the modules that this process has
imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from flowengine.authoring import event_facet_named, workflow_named
from flowengine.authoring.tracer import declaration_of
from flowengine.documents import (
    MAX_BYTES,
    SUFFIXES,
    CompiledDocument,
    ReadDocument,
    link_document,
    name_of,
    read_document,
)
from flowengine.errors import InvalidDocument
from flowengine.errors.documents import DocumentProblem
from flowengine.program import Program
from flowengine.program.nodes import FacetDeclaration
from flowengine.program.standard import is_built_in


@dataclass
class Documents:
    """The workflows of some documents, and the problems of the broken ones."""

    compiled: dict[str, CompiledDocument] = field(default_factory=dict)
    problems: dict[str, list[DocumentProblem]] = field(default_factory=dict)  #: by workflow

    def all_problems(self) -> list[DocumentProblem]:
        return [problem for found in self.problems.values() for problem in found]


def document_files(folder: str | Path) -> list[Path]:
    """Return the documents of a folder, sorted; other files and hidden ones are none.

    Raises OSError if a part of it cannot be listed: its documents must not be taken for removed.
    """
    found: list[Path] = []
    for directory, inner, files in os.walk(folder, onerror=_raise):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        visible = (name for name in files if not name.startswith("."))
        found += [Path(directory, name) for name in visible if name.endswith(SUFFIXES)]
    return sorted(found)


def _raise(problem: OSError) -> NoReturn:
    raise problem


def load_folder(folder: str | Path) -> Documents:
    """Compile the documents of a folder."""
    return load_documents(
        (path, name_of(path.relative_to(folder))) for path in document_files(folder)
    )


def load_documents(named: Iterable[tuple[Path, str]]) -> Documents:
    """Compile documents, each with the name of its workflow; their tasks may start each other."""
    documents = Documents()
    read: dict[str, ReadDocument] = {}
    for path, name in named:
        if name in read or name in documents.problems:
            what = f"another document is the workflow `{name}`, too: rename one"
            documents.problems.setdefault(name, []).append(DocumentProblem(str(path), 1, 1, what))
            read.pop(name, None)  # neither is preferred
            continue
        try:
            read[name] = read_document(_content(path), name, str(path))
        except OSError as problem:
            what = f"it cannot be read: {problem.strerror or problem}"
            documents.problems[name] = [DocumentProblem(str(path), 1, 1, what)]
        except InvalidDocument as problem:
            documents.problems[name] = problem.problems
    for name, document in read.items():
        try:
            documents.compiled[name] = link_document(
                document, read, find_facet=declared_facet, find_workflow=_program_of
            )
        except InvalidDocument as problem:
            documents.problems[name] = problem.problems
        except Exception as problem:  # the body of a workflow in Python was traced
            what = f"a workflow or facet that it names cannot be used: {problem}"
            documents.problems[name] = [DocumentProblem(document.file, 1, 1, what)]
    return documents


def folder_state(folder: str | Path) -> tuple[tuple[str, int, int, int], ...]:
    """Return what changes whenever a document does; also behind a swapped symbolic link."""
    return tuple(_states(folder))


def _states(folder: str | Path) -> Iterator[tuple[str, int, int, int]]:
    for path in document_files(folder):
        try:
            status = path.stat()
        except OSError:
            yield str(path), 0, 0, 0
        else:
            yield str(path), status.st_mtime_ns, status.st_size, status.st_ino


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def declared_facet(name: str) -> FacetDeclaration | None:
    """Return the declaration of an event facet of this process."""
    facet = None if is_built_in(name) else event_facet_named(name)
    if facet is None:
        return None
    return replace(declaration_of(facet.definition)[0], name=name.rpartition(".")[2])


def _program_of(name: str) -> Program | None:
    flow = workflow_named(name)
    return None if flow is None else flow.program()
