"""A folder of documents: each file is a workflow, named by its path; a broken one stops alone.

Names of event facets and of workflows in Python are those of the modules that this process has
imported.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from flowengine.authoring import event_facet_named, event_facet_names, workflow_named
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
from flowengine.printable import printable
from flowengine.program import Program
from flowengine.program.nodes import FacetDeclaration
from flowengine.program.standard import is_built_in

MAX_ENTRIES = 20_000  #: files and folders below a folder of documents


@dataclass
class Documents:
    """The workflows of some documents, and the problems of the broken ones."""

    compiled: dict[str, CompiledDocument] = field(default_factory=dict)
    #: By workflow; those of a folder that cannot be listed by its path, with a slash at the end.
    problems: dict[str, list[DocumentProblem]] = field(default_factory=dict)
    unlisted: list[str] = field(default_factory=list)  #: how names of unseen documents begin
    read: dict[str, ReadDocument] = field(default_factory=dict)  #: those that are compiled

    def all_problems(self) -> list[DocumentProblem]:
        """Return the problems by file, those of a file in the order of their places."""
        found = [problem for each in self.problems.values() for problem in each]
        return sorted(found, key=attrgetter("file", "line", "column"))


@dataclass
class KnownDocuments:
    """The last load of a folder: documents with the same content are not compiled again."""

    read: dict[str, tuple[bytes, ReadDocument]] = field(default_factory=dict)
    compiled: dict[str, tuple[list[object], CompiledDocument]] = field(default_factory=dict)


class Listing(NamedTuple):
    """The documents of a folder, and the folders below it that cannot be listed."""

    files: list[Path]
    problems: dict[Path, OSError]

    def named(self, folder: str | Path) -> Iterator[tuple[Path, str]]:
        """Return the files with the names of their workflows."""
        return ((path, name_of(path.relative_to(folder))) for path in self.files)


def list_folder(folder: str | Path) -> Listing:
    """Return the documents of a folder, sorted; other files and hidden ones are none.

    Links to folders are followed, unless they lead back to a folder that contains them: its
    documents are found already. Raises OSError if the folder itself cannot be listed, or has too
    many entries: its documents must not be taken for removed.
    """
    found = Listing([], {})
    for count, path in enumerate(_entries(Path(folder), frozenset(), found.problems)):
        if count >= MAX_ENTRIES:
            what = f"it has more than {MAX_ENTRIES:,} files and folders: split it"
            raise OSError(errno.EFBIG, what, str(folder))
        if path.name.endswith(SUFFIXES):
            found.files.append(path)
    if Path(folder) in found.problems:
        raise found.problems[Path(folder)]
    found.files.sort()
    return found


def _entries(
    folder: Path, above: frozenset[tuple[int, int]], problems: dict[Path, OSError]
) -> Iterator[Path]:
    """Yield the visible files below a folder, and its folders."""
    try:
        status = folder.stat()
        here = status.st_dev, status.st_ino
        if here in above:
            return
        with os.scandir(folder) as listed:
            entries = sorted(listed, key=lambda entry: entry.name)
    except OSError as problem:
        problems[folder] = problem
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = Path(entry.path)
        if _is_folder(entry):
            yield from _entries(path, above | {here}, problems)
            continue
        yield path


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads nowhere, or through a folder that is closed
        return not entry.name.endswith(SUFFIXES)


def load_folder(folder: str | Path, known: KnownDocuments | None = None) -> Documents:
    """Compile the documents of a folder. Raises OSError if it cannot be listed."""
    listing = list_folder(folder)
    documents = load_documents(listing.named(folder), known)
    tell_unlisted(documents, listing, folder)
    return documents


def tell_unlisted(documents: Documents, listing: Listing, folder: str | Path) -> None:
    """Add the problems of the folders below one that cannot be listed."""
    for path, problem in listing.problems.items():
        inside = path.relative_to(folder)
        what = f"the folder cannot be read: {problem.strerror or problem}"
        documents.problems[f"{printable(str(inside))}/"] = [_problem(path, what)]
        documents.unlisted.append(printable(".".join((*inside.parts, ""))))


def load_documents(
    named: Iterable[tuple[Path, str]], known: KnownDocuments | None = None
) -> Documents:
    """Compile documents, each with the name of its workflow; their tasks may start each other."""
    documents, known = Documents(), known or KnownDocuments()
    read: dict[str, tuple[bytes, ReadDocument]] = {}
    files: dict[str, Path] = {}
    for path, name in named:
        name = printable(name)  # of a path that is not UTF-8
        if name in read or name in documents.problems:
            what = f"{files[name]} is the workflow `{name}`, too: rename one"
            documents.problems.setdefault(name, []).append(_problem(path, what))
            read.pop(name, None)  # neither is preferred
            continue
        files[name] = path
        try:
            read[name] = _read(path, name, known)
        except OSError as problem:
            what = f"it cannot be read: {problem.strerror or problem}"
            documents.problems[name] = [_problem(path, what)]
        except InvalidDocument as problem:
            documents.problems[name] = problem.problems
        except Exception as problem:  # one document must not stop the others
            what = f"it cannot be read: {type(problem).__name__}: {problem}"
            documents.problems[name] = [_problem(path, what)]
    others = {name: document for name, (_, document) in read.items()}
    compiled: dict[str, tuple[list[object], CompiledDocument]] = {}
    for name, document in others.items():
        try:
            parts = _parts(name, read)
            before = known.compiled.get(name)
            if before is None or before[0] != parts:
                linked = link_document(
                    document, others, find_facet=declared_facet, find_workflow=_program_of
                )
                before = parts, linked
            compiled[name] = before
            documents.compiled[name] = before[1]
        except InvalidDocument as problem:
            documents.problems[name] = problem.problems
        except Exception as problem:  # the body of a workflow in Python was traced
            what = f"a workflow or facet that it names cannot be used: {problem}"
            documents.problems[name] = [_problem(Path(document.file), what)]
    _refuse_shared_schedules(documents)
    documents.read = {name: others[name] for name in documents.compiled}
    # Linking has noted its problems in those that it has not compiled: they are read anew.
    known.read = {name: each for name, each in read.items() if name in compiled}
    known.compiled = compiled
    return documents


def _read(path: Path, name: str, known: KnownDocuments) -> tuple[bytes, ReadDocument]:
    content = _content(path)
    digest = hashlib.blake2b(content, digest_size=16).digest()
    before, file = known.read.get(name), printable(str(path))
    if before is not None and before[0] == digest and before[1].file == file:
        return before
    return digest, read_document(content, name, file)


def _parts(name: str, read: Mapping[str, tuple[bytes, ReadDocument]]) -> list[object]:
    """Return everything that a compiled document is made of, to be compared."""
    parts: list[object] = []
    names = [name]
    for each in names:  # grows
        if each not in read:
            parts.append(workflow_named(each))
            continue
        digest, document = read[each]
        parts += [document.file, digest]
        parts += [None if is_built_in(call) else event_facet_named(call) for call in document.calls]
        names += [child for child in document.children if child not in names]
    return parts


def _refuse_shared_schedules(documents: Documents) -> None:
    """Refuse documents that have a schedule of the same name: each tick has one workflow."""
    having: dict[str, list[CompiledDocument]] = {}
    for document in documents.compiled.values():
        for schedule in document.schedules:
            having.setdefault(schedule.name or document.name, []).append(document)
    for name, several in having.items():
        if len(several) < 2:
            continue
        for document in several:
            others = ", ".join(each.file for each in several if each is not document)
            what = f"the schedule `{name}` is also that of {others}: give each a `name` of its own"
            problem = _problem(Path(document.file), what)
            documents.problems.setdefault(document.name, []).append(problem)
            documents.compiled.pop(document.name, None)  # neither is preferred


def unknown_facets(documents: Documents) -> Iterator[DocumentProblem]:
    """Yield calls of facets that a module lacks of which others are known here: perhaps typos.

    They are no problems: another worker may have a newer version of the module.
    """
    modules: dict[str, list[str]] = {}
    for name in event_facet_names():
        modules.setdefault(name.rpartition(".")[0], []).append(name)
    for document in documents.read.values():
        for name, calls in document.calls.items():
            module = name.rpartition(".")[0]
            if is_built_in(name) or event_facet_named(name) or module not in modules:
                continue
            near = get_close_matches(name, modules[module], 1)
            hint = f"; did you mean `{near[0]}`?" if near else ""
            what = f"`{module}`, as it is imported here, has no event facet `{name}`{hint}"
            for place, _ in calls:
                yield DocumentProblem(document.file, place.line, place.column, what)


def _problem(path: Path, what: str) -> DocumentProblem:
    return DocumentProblem(printable(str(path)), 1, 1, what)


def folder_state(folder: str | Path) -> tuple[tuple[str, int, int, int], ...]:
    """Return what changes whenever a document does; also behind a swapped symbolic link."""
    return tuple(_states(folder))


def _states(folder: str | Path) -> Iterator[tuple[str, int, int, int]]:
    listing = list_folder(folder)
    for path, problem in listing.problems.items():
        yield str(path), -1, problem.errno or 0, 0
    for path in listing.files:
        try:
            status = path.stat()
        except OSError:
            yield str(path), 0, 0, 0
        else:
            yield str(path), status.st_mtime_ns, status.st_size, status.st_ino


def _content(path: Path) -> bytes:
    # Without waiting: a pipe has no writer, and is refused as soon as it is open.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
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
