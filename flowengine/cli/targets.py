"""The target of a command: a workflow of a Python module or of a program file, and its inputs."""

from __future__ import annotations

import base64
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from flowengine.authoring import Workflow, event_facet_named, workflow_named
from flowengine.authoring.validation import finding_of
from flowengine.engine import Engine
from flowengine.errors import FlowengineError, InvalidDocument
from flowengine.program import Plan, Program, link_program
from flowengine.program.commands import COMMANDS
from flowengine.program.function_options import function_of
from flowengine.program.nodes import FacetKind, Field, Location
from flowengine.program.plan import FacetPlan
from flowengine.program.standard import is_built_in
from flowengine.program.types import check_inputs
from flowengine.settings import Settings

if TYPE_CHECKING:
    from flowengine.documents import CompiledDocument

_FILES = (".afl", ".ffl", ".json")
_DOCUMENTS = (".yml", ".yaml")


def load_module(name: str) -> ModuleType:
    """Import a module; raise ClickException with the line of the author's code that fails."""
    with author_errors(f"{name} cannot be imported"):
        return import_target(name)


@contextmanager
def author_errors(what: str) -> Iterator[None]:
    """Name the line at which the author's code raises."""
    try:
        yield
    except (click.ClickException, FlowengineError):
        raise
    except (Exception, SystemExit) as problem:
        finding = finding_of(problem, Location(0))
        place = finding.location
        where = f"{place.file}:{place.line}: " if place.file else ""
        raise click.ClickException(f"{what}: {where}{finding.what}") from problem


def import_target(name: str) -> ModuleType:
    """Import a module by name or by file. The working directory is searched first."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if name.endswith(".py"):
        path = Path(name)
        if not path.is_file():
            raise click.ClickException(f"there is no file {name}")
        # Import it under its stem, so that qualified names equal those of `python file.py`.
        folder = str(path.parent.resolve())
        if sys.path[0] != folder:
            sys.path.insert(0, folder)
        name = path.stem
    elif "/" in name and (Path(name) / "__init__.py").is_file():
        name = ".".join(Path(name).parts)  # a package as shells complete it: `shop/`
    if not all(name.split(".")):
        raise click.ClickException(
            f"{name!r} is not a module: use a module that can be imported from {here}, or a file "
            "like examples/quickstart.py"
        )
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name and name.startswith(missing.name):
            raise click.ClickException(
                f"there is no module {name!r}: use a module that can be imported from "
                f"{here}, or a file like examples/quickstart.py"
            ) from None
        raise


def load_modules(names: Sequence[str]) -> None:
    for name in names:
        load_module(name.partition(":")[0])


def setting_modules(settings: Settings) -> list[str]:
    """Return the modules of the setting `imports`: documents call their facets."""
    return [name.strip() for name in settings.imports.split(",") if name.strip()]


@dataclass(frozen=True)
class PreparedStart:
    """A start with validated program and inputs; no database is open yet."""

    start: Callable[..., str]  #: takes the engine and the options of the start, returns the run id
    modules: str  #: modules with the code of its facets


def prepare(
    targets: Sequence[str],
    workflow: str | None,
    modules: Sequence[str],
    given: Sequence[str],
    settings: Settings,
    *,
    needs_code: bool,
) -> PreparedStart:
    """Load the workflow of a target and validate the inputs.

    Several targets are the files of one program.
    With `needs_code`, refuse a program if none of its event facets has code in this process:
    it would wait for ever.
    """
    load_modules(modules)
    parted = [target.partition(":") for target in targets]
    files, names = [file for file, _, _ in parted], [name for _, _, name in parted if name]
    if len(files) == 1 and Path(files[0]).suffix in _DOCUMENTS:
        load_modules(setting_modules(settings))
        document = _document_at(files[0], settings)
        if needs_code:
            _require_code(link_program(document.program), settings)
        return _of_document(document, given, " ".join(modules) or "MODULE")
    if len(files) == 1 and Path(files[0]).suffix not in _FILES:
        target = f"{files[0]}:{workflow}" if workflow else targets[0]
        return _of_python(_load_workflow(target), given, " ".join((files[0], *modules)))
    for file in files:
        if Path(file).suffix not in _FILES:
            raise click.ClickException(
                f"{file} is not a file of a program ({', '.join(_FILES)}); several targets are "
                "the files of one program, and modules with code are named with --module"
            )
        if not Path(file).is_file():
            raise click.ClickException(f"there is no file {file}")
    if len({*names, *([workflow] if workflow else [])}) > 1:
        raise click.ClickException(f"name one workflow, not several: {', '.join(names)}")
    from flowengine.assembly import load_program  # imports Celery

    program = load_program(files, settings=settings)
    plan = link_program(program, allow_scripts=settings.scripts)
    facet = _select_workflow(plan, " ".join(files), workflow or "".join(names[:1]))
    if needs_code:
        _require_code(plan, settings)
    inputs = _read_inputs(facet.params, given)
    check_inputs(facet, inputs)

    def start(engine: Engine, **options: Any) -> str:
        return engine.start(program, facet.name, inputs, **options).id

    return PreparedStart(start, " ".join(modules) or "MODULE")


def prepare_named(
    name: str,
    folder: str | None,
    modules: Sequence[str],
    given: Sequence[str],
    settings: Settings,
) -> PreparedStart:
    """Find a workflow by its name, among documents and imported modules; validate the inputs."""
    from flowengine.cli.document_targets import document_named  # loads PyYAML

    load_modules((*setting_modules(settings), *modules))
    document = document_named(name, settings, folder)
    if document is not None:
        return _of_document(document, given, " ".join(modules) or "MODULE")
    flow = workflow_named(name)
    if flow is None:
        return _of_catalogue(name, given)
    return _of_python(flow, given, " ".join(modules))


def _of_catalogue(name: str, given: Sequence[str]) -> PreparedStart:
    """Start a workflow that others have published: its program is in the database."""

    def start(engine: Engine, **options: Any) -> str:
        facet = engine.catalogue.prepared(name)[2].workflow(name)
        inputs = _read_inputs(facet.params, given)
        check_inputs(facet, inputs)
        return engine.start(name, inputs, **options).id

    return PreparedStart(start, "MODULE")


def _document_at(file: str, settings: Settings) -> CompiledDocument:
    if not Path(file).is_file():
        raise click.ClickException(f"there is no file {file}")
    from flowengine.cli.document_targets import documents_at  # loads PyYAML

    documents = documents_at([file], settings)
    if documents.problems:
        raise InvalidDocument(documents.all_problems())
    return next(iter(documents.compiled.values()))


def _of_document(document: CompiledDocument, given: Sequence[str], modules: str) -> PreparedStart:
    facet = link_program(document.program).workflow(document.name)
    inputs = _read_inputs(facet.params, given)
    check_inputs(facet, inputs)

    def start(engine: Engine, **options: Any) -> str:
        return engine.start(document.program, document.name, inputs, **options).id

    return PreparedStart(start, modules)


def _of_python(workflow: Workflow[..., Any], given: Sequence[str], modules: str) -> PreparedStart:
    with author_errors(f"{workflow.name} cannot be traced"):
        program = workflow.program()
    params = link_program(program).workflow(workflow.name).params
    received = workflow.definition.signature.received
    inputs = received(workflow.name, _read_inputs(params, given))
    workflow.inputs(**inputs)

    def start(_: Engine, **options: Any) -> str:
        return workflow.options(**options).start(**inputs).id  # uses the launcher of its module

    return PreparedStart(start, modules)


def _select_workflow(plan: Plan, file: str, name: str) -> FacetPlan:
    if name:
        return plan.workflow(name)
    workflows = sorted(n for n, f in plan.facets.items() if f.kind is FacetKind.WORKFLOW)
    if len(workflows) == 1:
        return plan.facets[workflows[0]]
    names = ", ".join(workflows) or "none"
    raise click.ClickException(f"name a workflow of {file} with --workflow; it has: {names}")


def _require_code(plan: Plan, settings: Settings) -> None:
    # Code of built-in facets comes with the engine.
    events = sorted(
        name
        for name, facet in plan.facets.items()
        if facet.kind is FacetKind.EVENT and not is_built_in(name)
    )
    if commands := [name for name in events if name in COMMANDS]:
        if not settings.commands:
            what = f"it runs commands ({', '.join(commands)}), and the setting `commands` is off"
            raise click.ClickException(f"{what}: set FLOWENGINE_COMMANDS=on to run them here")
        return
    if events and not any(event_facet_named(name) for name in events):
        if (version := function_of(events[0])) and workflow_named(version[0]) is not None:
            raise click.ClickException(
                f"no Python code for version {version[1]} of the durable function {version[0]} in "
                "this process: its module declares other versions"
            )
        raise click.ClickException(
            f"no Python code for {', '.join(events)} in this process: name its module with "
            f'--module, and declare the facet there with @event_facet(name="{events[0]}")'
        )


def _load_workflow(target: str) -> Workflow[..., Any]:
    """Return the workflow of a target; without a name, the only one of its module."""
    module_name, _, name = target.partition(":")
    module = load_module(module_name)
    workflows = {key: value for key, value in vars(module).items() if isinstance(value, Workflow)}
    if name in workflows:
        return workflows[name]
    if not name and len(workflows) == 1:
        return next(iter(workflows.values()))
    if not workflows:
        raise click.ClickException(f"{module_name} has no workflow")
    names = ", ".join(f"{module_name}:{key}" for key in workflows)
    problem = f"no workflow {name!r}; it has" if name else f"{len(workflows)} workflows, name one"
    raise click.ClickException(f"{module_name} has {problem}: {names}")


def program_of_target(target: str) -> Program:
    """Return the program of a workflow of a Python module."""
    workflow = _load_workflow(target)
    with author_errors(f"{workflow.name} cannot be traced"):
        return workflow.program()


def _read_inputs(params: Iterable[Field], given: Sequence[str]) -> dict[str, Any]:
    """Return the inputs. A value is JSON, plain text for a text parameter, or @file."""
    fields = {field.name: field for field in params}
    inputs: dict[str, Any] = {}
    for pair in given:
        name, equals, text = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"{pair!r} is not name=value", param_hint="--input")
        if name in inputs:
            raise click.BadParameter(f"{name!r} is given twice", param_hint="--input")
        inputs[name] = _value(name, text, fields.get(name))
    return inputs


def _value(name: str, text: str, field: Field | None) -> Any:
    if text.startswith("@"):
        path = Path(text[1:])
        try:
            if not path.is_file():
                raise click.BadParameter(f"there is no file {path}", param_hint="--input")
            if field is not None and (field.schema or {}).get("contentEncoding") == "base64":
                return base64.b64encode(path.read_bytes()).decode("ascii")
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else problem
            raise click.BadParameter(
                f"{path} cannot be read as text: {reason}", param_hint="--input"
            ) from None
    if field is not None and field.type == "String":
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
    except RecursionError:
        what = f"the value of {name!r} is nested too deeply"
    except ValueError as problem:  # a number of more digits than Python converts
        what = f"the value of {name!r} cannot be read: {problem}"
    raise click.BadParameter(what, param_hint="--input")
