"""The unfinished runs and the agents of each tenant, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flowengine.agents.views import AgentMetrics
from flowengine.engine.results import RunMetrics
from flowengine.store.agent_lists import AgentCount

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


def agent_exposition(found: AgentMetrics, now: int) -> str:
    """Return the metrics of agents; `now` is in milliseconds."""
    queued = [row for row in found.open_turns if row.state == "queued"]
    suspended = [row for row in found.active if row.state == "suspended"]
    return "\n".join(
        (
            *_gauge("flowengine_active_agents", "Agents that work on a turn.", found.active),
            *_gauge("flowengine_open_turns", "Turns that have not ended.", found.open_turns),
            *_gauge(
                "flowengine_turns_ended_last_hour",
                "Turns that ended in the last hour.",
                found.ended_turns,
                label="status",
            ),
            *_gauge(
                "flowengine_oldest_queued_turn_seconds",
                "Seconds since the oldest turn that waits for its agent was sent.",
                queued,
                now=now,
            ),
            *_gauge(
                "flowengine_oldest_suspended_agent_seconds",
                "Seconds since an agent that waits for its calls has heard of one.",
                suspended,
                now=now,
            ),
            "",
        )
    )


def _gauge(
    name: str,
    description: str,
    rows: Sequence[AgentCount],
    *,
    label: str = "state",
    now: int | None = None,
) -> list[str]:
    """Return one gauge: a number by project and state, or with `now` the age of the oldest."""
    lines = [f"# HELP {name} {description}", f"# TYPE {name} gauge"]
    for row in rows:
        labels = f'tenant="{row.project.translate(_ESCAPES)}"'
        if now is None:
            lines.append(f'{name}{{{labels},{label}="{row.state}"}} {row.number}')
        else:
            lines.append(f"{name}{{{labels}}} {max(0, now - row.oldest) / 1000:g}")
    return lines
