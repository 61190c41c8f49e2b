"""`flowengine doctor`: the invariants between the tables."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from flowengine.agents import agents_of
from flowengine.cli.database import open_engine
from flowengine.cli.streams import json_of
from flowengine.cli.terminal import console, line
from flowengine.store.invariants import INVARIANTS

_MAX_ROWS = 5  #: shown of each invariant; `--json` has up to 1,000


def check(*, repair: bool, as_json: bool) -> None:
    with open_engine() as engine:
        agents_of(engine)  # a repair may advance agents
        found = engine.doctor(repair=repair)
    left = [one for one in found if not one.is_repaired]
    if as_json:
        shown = [
            {**asdict(one), "violations": [row._asdict() for row in one.violations]}
            for one in found
        ]
        click.echo(json_of(shown))
        sys.exit(1 if left else 0)
    for one in found:
        sign = ("✓ ", "green") if one.is_repaired else ("✗ ", "red")
        count = f"{len(one.violations):,}" + ("" if len(one.violations) < 1_000 else " or more")
        console.print(line(sign, (one.invariant, "bold"), f"  {count} violations"))
        console.print(line(("    " + one.explanation, "dim")))
        for row in one.violations[:_MAX_ROWS]:
            subject = f" {row.subject}" if row.subject else ""
            console.print(line(f"    run {row.run_id}{subject}"))
        if len(one.violations) > _MAX_ROWS:
            console.print(line(("    …", "dim")))
        if one.is_repaired:
            console.print(line(("    repaired", "green")))
        else:
            cure = f"--repair {one.repair}" if one.repair else "a person must look at it"
            console.print(line((f"    {cure}", "yellow")))
    if not found:
        console.print(line(("✓ ", "green"), f"all {len(INVARIANTS)} invariants hold"))
    sys.exit(1 if left else 0)
