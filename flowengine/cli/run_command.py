"""`flowengine run`: prepare a workflow of a Python module or of a program file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from flowengine.authoring import Workflow, event_facet_named
from flowengine.cli.inputs import read_inputs
from flowengine.cli.workflow_loader import load_modules, load_workflow
from flowengine.engine import Engine
from flowengine.program import Plan, Program, link_program
from flowengine.program.nodes import FacetKind
from flowengine.program.plan import FacetPlan
from flowengine.program.types import check_inputs

_FILES = (".afl", ".json")


@dataclass(frozen=True)
class PreparedStart:
    """A start with validated program and inputs; no database is open yet."""

    start: Callable[[Engine, str | None], str]  #: takes the key, returns the run id
    modules: str  #: modules with the code of its facets


def prepare(
    target: str,
    workflow: str | None,
    modules: Sequence[str],
    given: Sequence[str],
    *,
    needs_code: bool,
) -> PreparedStart:
    """Load the workflow of a target and validate the inputs.

    With `needs_code`, refuse a program if none of its event facets has code in this process:
    it would wait for ever.
    """
    load_modules(modules)
    file, _, named = target.partition(":")
    if Path(file).suffix not in _FILES:
        if workflow:
            target = f"{file}:{workflow}"
        return _of_python(load_workflow(target), given, " ".join((file, *modules)))
    program = read_program(file)
    plan = link_program(program)
    facet = _select_workflow(plan, file, workflow or named)
    if needs_code:
        _require_code(plan)
    inputs = read_inputs(facet.params, given)
    check_inputs(facet, inputs)

    def start(engine: Engine, key: str | None) -> str:
        return engine.start(program, facet.name, inputs, key=key).id

    return PreparedStart(start, " ".join(modules) or "MODULE")


def read_program(file: str) -> Program:
    if not Path(file).is_file():
        raise click.ClickException(f"there is no file {file}")
    from flowengine.assembly import load_program  # imports Celery

    return load_program(file)


def _of_python(workflow: Workflow[..., Any], given: Sequence[str], modules: str) -> PreparedStart:
    params = link_program(workflow.program()).workflow(workflow.name).params
    inputs = read_inputs(params, given)
    workflow.inputs(**inputs)

    def start(_: Engine, key: str | None) -> str:
        return workflow.options(key=key).start(**inputs).id  # uses the launcher of its module

    return PreparedStart(start, modules)


def _select_workflow(plan: Plan, file: str, name: str) -> FacetPlan:
    if name:
        return plan.workflow(name)
    workflows = sorted(n for n, f in plan.facets.items() if f.kind is FacetKind.WORKFLOW)
    if len(workflows) == 1:
        return plan.facets[workflows[0]]
    names = ", ".join(workflows) or "none"
    raise click.ClickException(f"name a workflow of {file} with --workflow; it has: {names}")


def _require_code(plan: Plan) -> None:
    events = sorted(n for n, f in plan.facets.items() if f.kind is FacetKind.EVENT)
    if events and not any(event_facet_named(name) for name in events):
        raise click.ClickException(
            f"no Python code for {', '.join(events)} in this process: name its module with "
            f'--module, and declare the facet there with @event_facet(name="{events[0]}")'
        )
