"""`flowengine check`: validate modules without running anything."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import ModuleType

import click
from rich.console import Console

from flowengine.authoring.facets import Decorated, EventFacet, Facet, Workflow
from flowengine.authoring.validation import Finding, finding_of, findings_of
from flowengine.cli import configuration
from flowengine.cli.document_targets import documents_at, is_document
from flowengine.cli.targets import import_target, setting_modules
from flowengine.cli.terminal import line, lines
from flowengine.errors import CeleryTaskWarning
from flowengine.errors.documents import DocumentProblem
from flowengine.printable import printable
from flowengine.program.nodes import Location
from flowengine.worker.document_folder import Documents, unknown_facets


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The checked workflows and facets, and the findings in them."""

    workflows: list[str]
    facets: list[str]
    findings: list[Finding]
    documents: list[DocumentProblem]  #: problems of documents
    document_warnings: list[DocumentProblem]

    @property
    def problems(self) -> list[Finding]:
        """The findings that prevent a run."""
        return [finding for finding in self.findings if not finding.is_warning]


def of_settings() -> list[str]:
    """Return the modules and the folder of documents that the settings name."""
    settings = configuration.settings()
    folders = [settings.workflows] if settings.workflows else []
    if folders and not Path(settings.workflows).is_dir():
        what = f"there is no folder {settings.workflows} of documents, which `workflows` names"
        raise click.ClickException(what)
    if not (found := [*setting_modules(settings), *folders]):
        raise click.UsageError("name modules, files or folders; no setting names any")
    return found


def check(names: Sequence[str]) -> CheckReport:
    """Import modules, files and packages; trace and link their workflows and facets.

    Documents come last: they may call what the modules declare.
    """
    folder = configuration.settings().workflows
    own = Path(folder) if folder else None
    paths = [name for name in names if Path(name) == own or is_document(name)]
    names = [name for name in names if name not in paths]
    findings: list[Finding] = []
    warnings.simplefilter("ignore", CeleryTaskWarning)  # they are listed below
    decorated: dict[str, Decorated[..., object]] = {}
    for module in _modules(names, findings):
        for value in vars(module).values():
            if isinstance(value, EventFacet | Facet | Workflow):
                decorated[value.name] = value
    findings += findings_of([each.definition for each in decorated.values()])
    for each in decorated.values():
        if isinstance(each, EventFacet) and each.celery_task is not None:
            losses = each.celery_task.findings()
            findings += [Finding(location, what, is_warning=True) for location, what in losses]
    workflows = sorted(name for name, each in decorated.items() if isinstance(each, Workflow))
    facets = sorted(set(decorated) - set(workflows))
    documents = documents_at(paths, configuration.settings()) if paths else Documents()
    workflows = sorted({*workflows, *documents.compiled, *documents.problems})
    found = list(dict.fromkeys(findings))
    unknown = sorted(unknown_facets(documents), key=attrgetter("file", "line", "column"))
    return CheckReport(workflows, facets, found, documents.all_problems(), unknown)


def _modules(names: Sequence[str], findings: list[Finding]) -> Iterator[ModuleType]:
    for name in names:
        try:
            module = import_target(name)
        except click.ClickException as problem:
            findings.append(Finding(Location(0, file=name), problem.message))
            continue
        except (Exception, SystemExit) as problem:
            findings.append(finding_of(problem, Location(0, file=name)))
            continue
        imported = Path(module.__file__ or "")
        if name.endswith(".py") and imported.resolve() != Path(name).resolve():
            what = f"module {module.__name__!r} is already imported from {imported}; rename one"
            findings.append(Finding(Location(0, file=name), what))
            continue
        yield module
        yield from _submodules(module, findings)


def _submodules(package: ModuleType, findings: list[Finding]) -> Iterator[ModuleType]:
    for info in pkgutil.iter_modules(getattr(package, "__path__", ())):
        name = f"{package.__name__}.{info.name}"
        if info.name == "__main__":
            continue  # importing it would run the program
        try:
            module = importlib.import_module(name)
        except (Exception, SystemExit) as problem:
            findings.append(finding_of(problem, Location(0, file=name)))
            continue
        yield module
        yield from _submodules(module, findings)


def relative_file(location: Location) -> str:
    """Return the file relative to the working directory, if it is below it."""
    path = Path(location.file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def show(checked: CheckReport, console: Console) -> None:
    """Print the problems by file."""
    for problem in checked.documents:
        where = line((problem.place, "bold"), ": ", printable(problem.what))
        console.print(where, soft_wrap=True)
    for warning in checked.document_warnings:
        where = line((warning.place, "bold"), ":", (" ! ", "yellow"), printable(warning.what))
        console.print(where, soft_wrap=True)
    file = ""
    for finding in checked.findings:
        if finding.location.file != file:
            file = finding.location.file
            console.print(line((relative_file(finding.location), "bold")), soft_wrap=True)
        sign = ("! ", "yellow") if finding.is_warning else ("✗ ", "red")
        mark = line((f"{finding.location.line or '':>6} ", "cyan"), sign)
        console.print(mark.append(lines(finding.what)), soft_wrap=True)
    workflows, facets = len(checked.workflows), len(checked.facets)
    scope = f"{_plural(workflows, 'workflow')}, {_plural(facets, 'facet')}"
    told = len(checked.findings) - len(checked.problems) + len(checked.document_warnings)
    also = f", {_plural(told, 'warning')}" if told else ""
    if count := len(checked.problems) + len(checked.documents):
        problems = _plural(count, "problem")
        console.print(line((f"{problems}{also} ({scope})", "red")))
    else:
        console.print(line(("✓ ", "green"), f"{scope}: no problems{also}"))


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
