"""A workflow of every second. Only workers import it: its schedule would be published by tests."""

from __future__ import annotations

from flowengine import Schedule, event_facet, tick, workflow


@event_facet(name="clockwork.strike")
def strike(at: str) -> str:
    return at


@workflow(
    name="clockwork.seconds",
    schedule=Schedule("* * * * * *", catch_up="all", inputs={"at": tick.utc}),
)
def seconds(at: str) -> str:
    return strike(at)
