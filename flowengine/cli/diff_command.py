"""`flowengine diff`: compare the programs of unfinished runs with today's code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from flowengine.cli.streams import json_of

if TYPE_CHECKING:
    from flowengine.engine.versions import ProgramDifference


@click.command()
@click.argument("modules", nargs=-1, required=True, metavar="MODULE...")
@click.option("--workflow", help="Only runs of this workflow: its qualified name.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def diff(modules: Sequence[str], workflow: str | None, as_json: bool) -> None:
    """Compare the programs of unfinished runs with today's code.

    MODULE is a module or a file with workflows and facets, as they are about to be deployed. Says
    which runs have another program than new runs would have, and which facets no longer take what
    stored steps will send; then the exit code is 1.
    """
    from flowengine.authoring.registry import (
        event_facet_named,
        event_facet_names,
        workflow_named,
        workflow_names,
    )
    from flowengine.cli.database import open_engine
    from flowengine.cli.targets import author_errors, load_modules
    from flowengine.engine.versions import Versions
    from flowengine.program.differences import FacetCode

    load_modules(modules)
    programs, code = {}, {}
    for name in workflow_names():
        known = workflow_named(name)
        if known is not None:
            with author_errors(f"{name} cannot be traced"):
                programs[name] = known.program()
    for name in event_facet_names():
        facet = event_facet_named(name)
        if facet is not None:
            signature = facet.definition.signature
            code[name] = FacetCode(signature.fields(), signature.returns())
    with open_engine() as engine:
        versions = Versions(engine.database, engine.programs, engine.settings.tenant)
        found = versions.differences(programs, code, workflow=workflow)
    if as_json:
        click.echo(json_of([{**asdict(each), "breaks": each.breaks} for each in found]))
    else:
        _print(found)
    sys.exit(1 if any(each.breaks for each in found) else 0)


def _print(found: Sequence[ProgramDifference]) -> None:
    from flowengine.cli.terminal import console, line

    for each in found:
        runs = "1 unfinished run" if each.runs == 1 else f"{each.runs:,} unfinished runs"
        name = (each.workflow, "bold")
        program = f", program {each.program_hash[:8]}: "
        console.print(line(name, f" {runs}{program}{_verdict(each)}"), soft_wrap=True)
        for change in each.changes:
            console.print(line(f"  {change.facet} {change.what}"), soft_wrap=True)
        for call in each.refused:
            sign = ("✗ ", "red") if call.breaks else ("! ", "yellow")
            console.print(line("  ", sign, f"{call.facet} {call.what}"), soft_wrap=True)
    if not found:
        console.print(line("no run is unfinished"))


def _verdict(each: ProgramDifference) -> str:
    if not each.is_known:
        return "today's code has no such workflow"
    return "as today's code" if each.is_same else "today's code has another"
