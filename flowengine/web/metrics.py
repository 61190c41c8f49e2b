"""The unfinished runs of each tenant, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flowengine.engine.results import RunMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_GAUGES: tuple[tuple[str, str, Callable[[RunMetrics, int], float]], ...] = (
    ("flowengine_unfinished_runs", "Runs that have not ended.", lambda row, _: row.unfinished),
    ("flowengine_runs_with_alarm", "Unfinished runs with an alarm.", lambda row, _: row.alarms),
    (
        "flowengine_oldest_unfinished_run_seconds",
        "Seconds since the start of the oldest unfinished run.",
        lambda row, now: max(0, now - row.oldest) / 1000,
    ),
)
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def exposition(rows: Sequence[RunMetrics], now: int) -> str:
    """Return the metrics of these tenants; `now` is in milliseconds."""
    lines = []
    for name, description, value in _GAUGES:
        lines += [f"# HELP {name} {description}", f"# TYPE {name} gauge"]
        for row in rows:
            tenant = row.tenant.translate(_ESCAPES)
            lines.append(f'{name}{{tenant="{tenant}"}} {value(row, now):g}')
    return "\n".join(lines) + "\n"
