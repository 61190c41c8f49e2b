"""Measure the contenders and print the results.

python -m benchmarks                        everything; takes long
python -m benchmarks --quick                what `make bench-quick` does
python -m benchmarks --functions            what `make bench-functions` does
python -m benchmarks --workload W2 --size 1000 --contender flowengine --contender canvas
python -m benchmarks --section memory
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks import plan, report
from benchmarks.field import CONTENDERS, ContenderFailed
from benchmarks.measurements import Job, Limits, Sitting
from benchmarks.sections import full_database, growth, memory, real_work, small_then_large
from benchmarks.sections.section import Say, Section
from benchmarks.servers import Servers, private_servers
from benchmarks.targets import ratios
from benchmarks.workloads import WORKLOADS

SECTIONS: dict[str, Callable[[Servers, Say], Section]] = {
    "real-work": real_work.run,
    "memory": memory.run,
    "small-then-large": small_then_large.run,
    "growth": growth.run,
    "full-database": full_database.run,
}


@click.command()
@click.option("--quick", is_flag=True, help="W2, W3 and W4 of the main contenders, in minutes.")
@click.option("--functions", is_flag=True, help="Durable functions beside graphs and DBOS.")
@click.option("--workload", "workloads", multiple=True, type=click.Choice(list(WORKLOADS)))
@click.option("--size", "sizes", multiple=True, type=int, help="Instead of the usual sizes.")
@click.option("--contender", "contenders", multiple=True, type=click.Choice(list(CONTENDERS)))
@click.option("--section", "sections", multiple=True, type=click.Choice(list(SECTIONS)))
@click.option("--repeats", default=3, show_default=True)
@click.option("--once-above", type=float, help="Seconds; what takes longer is measured once.")
@click.option("--output", type=click.Path(path_type=Path), help="Where the JSON goes.")
def main(
    quick: bool,
    functions: bool,
    repeats: int,
    once_above: float | None,
    output: Path | None,
    **chosen: Any,
) -> None:
    """Measure flowengine and its neighbours, in turns, on private servers."""
    begun = time.monotonic()
    choice = plan.Choice(**chosen)
    # Small runs of DBOS take half a minute, and one measurement of them would prove little.
    limits = Limits(repeats, once_above or (6.0 if quick else 120.0 if functions else 20.0))
    if quick:
        limits.ends, limits.max_wait = begun + plan.QUICK_SECONDS, plan.QUICK_TIMEOUT
    jobs = plan.jobs(choice, quick=quick, functions=functions)
    names = plan.sections(choice, tuple(SECTIONS), is_short=quick or functions)
    console = Console(width=None if Console().is_terminal else 160)
    with private_servers() as servers:
        sitting = Sitting(servers, say=_quietly(console))
        try:
            measured = _measure(console, sitting, jobs, limits, names)
        finally:
            sitting.close()
        path = output or report.RESULTS / _file_name(quick, functions, choice)
        report.write(path, sitting, measured, time.monotonic() - begun)
    console.print(f"written to {path}; took {time.monotonic() - begun:.0f} s")


def _measure(
    console: Console, sitting: Sitting, jobs: list[Job], limits: Limits, names: tuple[str, ...]
) -> dict[str, Any]:
    if jobs:
        sitting.measure_all(jobs, limits)
        sitting.close()  # sections have contenders of their own
    report.print_header(console, sitting)
    report.print_figures(console, sitting, jobs)
    found = ratios(sitting.results)
    measured = {}
    for name in names:
        section = _section(console, sitting.servers, name)
        measured[name] = {"error": section} if isinstance(section, str) else section.as_json()
        found += [] if isinstance(section, str) else section.ratios
    report.print_summary(console, found)
    return measured


def _section(console: Console, servers: Servers, name: str) -> Section | str:
    """Run a section. The failure of one is printed, and does not stop the others."""
    try:
        section = SECTIONS[name](servers, _quietly(console))
    except ContenderFailed as problem:
        console.print(f"{name}: {problem}", style="red", markup=False)
        return str(problem)
    section.commits.append(servers.measure_commits())
    report.print_section(console, section)
    return section


def _quietly(console: Console) -> Say:
    """Return a function that prints progress."""
    return lambda line: console.print(line, style="dim", markup=False)


def _file_name(quick: bool, functions: bool, choice: plan.Choice) -> str:
    """Return another name for a choice: it must not replace the results of all."""
    if choice != plan.Choice():
        return "part.json"
    return "quick.json" if quick else "functions.json" if functions else "full.json"


if __name__ == "__main__":
    main()
