"""What `flowengine run` starts: a Python workflow, or one of a program in a file."""

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
from flowengine.program.inputs import check_inputs
from flowengine.program.nodes import FacetKind
from flowengine.program.plan import FacetPlan

_FILES = (".afl", ".json")


@dataclass(frozen=True)
class Prepared:
    """A start whose program and inputs were checked before a database is made."""

    start: Callable[[Engine, str | None], str]  #: takes the key, gives the run's id
    modules: str  #: those with the code that it needs


def prepare(
    target: str,
    workflow: str | None,
    modules: Sequence[str],
    given: Sequence[str],
    *,
    needs_code: bool,
) -> Prepared:
    """Load what a target names, and check the inputs.

    With `needs_code` a program none of whose event facets has code here is refused: it would
    wait for ever.
    """
    load_modules(modules)
    file, _, named = target.partition(":")
    if Path(file).suffix not in _FILES:
        if workflow:
            target = f"{file}:{workflow}"
        return _of_python(load_workflow(target), given, " ".join((file, *modules)))
    program = read_program(file)
    plan = link_program(program)
    facet = _chosen(plan, file, workflow or named)
    if needs_code:
        _find_code(plan)
    inputs = read_inputs(facet.params, given)
    check_inputs(facet, inputs)

    def start(engine: Engine, key: str | None) -> str:
        return engine.start(program, facet.name, inputs, key=key).id

    return Prepared(start, " ".join(modules) or "MODULE")


def read_program(file: str) -> Program:
    if not Path(file).is_file():
        raise click.ClickException(f"there is no file {file}")
    from flowengine.assembly import load_program  # brings Celery: not for `list` and `show`

    return load_program(file)


def _of_python(workflow: Workflow[..., Any], given: Sequence[str], modules: str) -> Prepared:
    params = link_program(workflow.program()).workflow(workflow.name).params
    inputs = read_inputs(params, given)
    workflow.inputs(**inputs)

    def start(_: Engine, key: str | None) -> str:
        return workflow.options(key=key).start(**inputs).id  # where its module sends starts

    return Prepared(start, modules)


def _chosen(plan: Plan, file: str, name: str) -> FacetPlan:
    if name:
        return plan.workflow(name)
    workflows = sorted(n for n, f in plan.facets.items() if f.kind is FacetKind.WORKFLOW)
    if len(workflows) == 1:
        return plan.facets[workflows[0]]
    known = ", ".join(workflows) or "none"
    raise click.ClickException(f"say which workflow of {file} with --workflow; it has: {known}")


def _find_code(plan: Plan) -> None:
    events = sorted(n for n, f in plan.facets.items() if f.kind is FacetKind.EVENT)
    if events and not any(event_facet_named(name) for name in events):
        raise click.ClickException(
            f"no Python code here answers to {', '.join(events)}: name the module that has it "
            f'with --module, and the facet there with @event_facet(name="{events[0]}")'
        )
