"""The report: tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.field import CONTENDERS
from benchmarks.measurements import Conditions, Job, Sitting
from benchmarks.processes import ROOT
from benchmarks.results import Figure
from benchmarks.sections.section import Section
from benchmarks.targets import Ratio, ratios
from benchmarks.workloads import WORKLOADS

RESULTS = ROOT / "benchmarks" / "results"


def machine() -> dict[str, Any]:
    model = platform.processor() or platform.machine()
    return {"cores": os.cpu_count(), "machine": model, "system": platform.platform()}


def revision() -> str:
    """The commit that was measured, and whether the tree differs from it."""
    ask = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(ask, capture_output=True, text=True).stdout.strip() or "unknown"


def weather(conditions: Conditions | None) -> str:
    """Return the cost of a commit and the load of the machine, for the foot of a table."""
    if conditions is None:
        return "nothing was measured"
    durable = [commits.durable for commits in conditions.commits]
    unsynced = statistics.median(commits.unsynced for commits in conditions.commits)
    return (
        f"One commit on this disk, looked at before each measurement: "
        f"{statistics.median(durable):.2f} ms ({min(durable):.2f}–{max(durable):.2f}; "
        f"{unsynced:.2f} without waiting for the disk). Load average "
        f"{min(conditions.loads):.1f}–{max(conditions.loads):.1f} on {os.cpu_count()} cores."
    )


def print_header(console: Console, sitting: Sitting) -> None:
    if not sitting.reported:
        return
    table = Table(title="contenders", title_justify="left", show_lines=True)
    for column in ("contender", "what", "durability", "versions", "settings that differ"):
        table.add_column(column)
    for name, contender in sitting.reported.items():
        entry = CONTENDERS[name]
        versions = ", ".join(f"{k} {v}" for k, v in contender.versions.items() if k != "python")
        settings = "\n".join(f"{key}: {value}" for key, value in contender.settings.items())
        table.add_row(name, entry.title, entry.durability, versions, settings)
    console.print(table)
    for facts in (machine(), sitting.servers.describe(), {"revision": revision()}):
        console.print(", ".join(f"{key}: {value}" for key, value in facts.items()))


def print_figures(console: Console, sitting: Sitting, jobs: Sequence[Job]) -> None:
    """One table per workload, all sizes under each other, and its targets."""
    found = ratios(sitting.results)
    for workload in dict.fromkeys(job.workload for job in jobs):
        shape = WORKLOADS[workload]
        table = Table(
            title=f"{workload}: {shape.title}",
            title_justify="left",
            caption=weather(sitting.conditions.get(workload)),
            caption_justify="left",
        )
        table.add_column("N", justify="right")
        table.add_column("contender")
        idle = workload == "W4 idle"
        names = ("p99 ms", "lowest–highest") if idle else ("seconds", "lowest–highest")
        for column in (shape.unit, *names, "times"):
            table.add_column(column, justify="right")
        table.add_column("durable")
        for job in dict.fromkeys(jobs):  # a round may have a job several times
            if job.workload == workload:
                for figure in sitting.results.of(workload, job.size):
                    table.add_row(*_row(figure))
                table.add_section()
        console.print(table)
        print_ratios(console, [ratio for ratio in found if ratio.workload == workload])


def _row(figure: Figure) -> list[str]:
    durable = CONTENDERS[figure.contender].is_durable
    head = [f"{figure.size:,}", figure.contender]
    if figure.error is not None:
        return [*head, "error", figure.error.strip().splitlines()[-1][:60], "", "", durable]
    if not figure.seconds:
        return [*head, "–", "", "", "0", durable]
    if figure.latencies:
        low, high = min(figure.latencies) * 1000, max(figure.latencies) * 1000
        middle = [f"{figure.p99 * 1000:.1f}", f"{low:.1f}–{high:.1f}"]
    else:
        low, high = min(figure.seconds), max(figure.seconds)
        middle = [f"{figure.median:.3f}", f"{low:.3f}–{high:.3f}"]
    return [*head, f"{figure.value:.2f}", *middle, str(len(figure.seconds)), durable]


def print_ratios(console: Console, found: Sequence[Ratio]) -> None:
    if not found:
        return
    table = Table(title="targets", title_justify="left")
    table.add_column("medians compared")
    table.add_column("found", justify="right")
    table.add_column("target")
    table.add_column("verdict")
    for ratio in found:
        style = {"met": "green", "missed": "red"}.get(ratio.verdict)
        table.add_row(ratio.what, f"{ratio.value:.2f}", ratio.target, ratio.verdict, style=style)
    console.print(table)


def print_summary(console: Console, found: Sequence[Ratio]) -> None:
    asked = [ratio for ratio in found if ratio.verdict]
    missed = [ratio.what for ratio in asked if ratio.verdict == "missed"]
    console.print(f"targets measured: {len(asked)}, met: {len(asked) - len(missed)}")
    for what in missed:
        console.print(f"  missed: {what}", style="red", markup=False)


def print_section(console: Console, section: Section) -> None:
    table = Table(
        title=section.title,
        title_justify="left",
        caption="; then ".join(str(commits) for commits in section.commits),
        caption_justify="left",
    )
    for column in section.columns:
        table.add_column(column, justify="left" if column == section.columns[0] else "right")
    for row in section.rows:
        table.add_row(*row)
    console.print(table)
    print_ratios(console, section.ratios)


def write(path: Path, sitting: Sitting, sections: dict[str, Any], seconds: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "revision": revision(),
        "machine": machine(),
        "servers": sitting.servers.describe(),
        "took_seconds": round(seconds, 1),
        "contenders": {
            name: {
                "title": CONTENDERS[name].title,
                "durability": CONTENDERS[name].durability,
                "versions": contender.versions,
                "settings": contender.settings,
            }
            for name, contender in sitting.reported.items()
        },
        "conditions": {
            workload: {
                "commit_ms": statistics.median(c.durable for c in found.commits),
                "commit_ms_unsynced": statistics.median(c.unsynced for c in found.commits),
                "load_average": found.loads,
            }
            for workload, found in sitting.conditions.items()
        },
        "figures": [figure.as_json() for figure in sitting.results.figures.values()],
        "ratios": [ratio.as_json() for ratio in ratios(sitting.results)],
        "sections": sections,
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
