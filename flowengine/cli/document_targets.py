"""Documents as targets of commands: files and folders of YAML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from flowengine.documents import SUFFIXES, CompiledDocument, name_of
from flowengine.errors import InvalidDocument
from flowengine.settings import Settings
from flowengine.worker.document_folder import (
    Documents,
    list_folder,
    load_documents,
    load_folder,
    tell_unlisted,
)


def is_document(target: str) -> bool:
    """Whether a target is a document, or a folder of them that is no package of Python.

    Files of Python beside documents are scripts that tasks run: to import them would run them.
    """
    path = Path(target)
    if path.suffix in SUFFIXES:
        return True
    if not path.is_dir() or (path / "__init__.py").is_file():
        return False
    with readable_folder(target):
        return any(list_folder(path))


@contextmanager
def readable_folder(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        what = f"the folder {folder} cannot be read: {problem.strerror}"
        raise click.ClickException(what) from None


def documents_at(targets: Sequence[str], settings: Settings) -> Documents:
    """Compile the documents of files and folders together."""
    listings = {target: list_folder(target) for target in targets if Path(target).is_dir()}
    documents = load_documents(
        named
        for target in targets
        for named in (
            listings[target].named(target) if target in listings else _named(target, settings)
        )
    )
    for target, listing in listings.items():
        tell_unlisted(documents, listing, target)
    return documents


def _named(target: str, settings: Settings) -> Iterator[tuple[Path, str]]:
    path = Path(target)
    root = Path(settings.workflows).resolve() if settings.workflows else path.parent.resolve()
    inside = path.resolve().is_relative_to(root)
    yield path, name_of(path.resolve().relative_to(root) if inside else path.name)


def document_named(name: str, settings: Settings, folder: str | None) -> CompiledDocument | None:
    """Return a workflow of the folder of documents; None if no document has that name."""
    folder = folder or settings.workflows
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise click.ClickException(f"there is no folder {folder} of documents")
    with readable_folder(folder):
        documents = load_folder(folder)
    if name in documents.problems:
        raise InvalidDocument(documents.problems[name])
    return documents.compiled.get(name)
