"""`flowengine breakers`: the list of circuit breakers, and the answers to changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import click

from flowengine.cli import configuration
from flowengine.cli.database import open_engine
from flowengine.cli.streams import json_of
from flowengine.cli.terminal import console, line, print_table, table_of
from flowengine.engine import Engine
from flowengine.engine.breaker_control import BreakerInfo
from flowengine.engine.presentation import clock
from flowengine.engine.results import duration
from flowengine.worker import CircuitBreakers

_MAX_CELL = 200
_COLUMNS = ("breaker", "state", "failures", "probes", "parked", "next try", "set to", "set by")


@contextmanager
def _engine() -> Iterator[Engine]:
    """Open the database, with the Redis that the breakers of the app are shared through."""
    address = ""
    if (app := configuration.celery_app()) is not None:
        from flowengine.assembly.plugin import redis_of  # imports Celery

        address = redis_of(app)
    with open_engine() as engine:
        CircuitBreakers(engine.settings, address).obey(engine.breakers)
        try:
            yield engine
        except Exception as problem:
            # By its module: its package need not be installed.
            if not type(problem).__module__.startswith("redis."):
                raise
            what = f"the Redis of the circuit breakers cannot be reached: {problem}"
            raise click.ClickException(f"{what}; their states are there") from None


def show_list(*, as_json: bool) -> None:
    with _engine() as engine:
        found = engine.breakers.list()
        now = engine.database.now()
    if as_json:
        click.echo(json_of([asdict(info) for info in found]))
        return
    if not found:
        console.print(line("no circuit breaker has counted a failure, parked a task or is set"))
        return
    rows = ([line(text, limit=_MAX_CELL) for text in _cells(info, now)] for info in found)
    print_table(table_of(_COLUMNS, rows))
    if any(info.state is None for info in found):
        text = "without a Redis the state of a breaker is in each process alone, and not shown"
        console.print(line((text, "dim")), soft_wrap=True)


def _cells(info: BreakerInfo, now: int) -> tuple[str, ...]:
    values = []
    if info.failure_threshold is not None:
        values.append(f"{info.failure_threshold} failures")
    if info.timeout is not None:
        values.append(f"{info.timeout:g} s")
    return (
        info.name,
        (info.state or "of each process").replace("_", " "),
        "" if info.failures is None else str(info.failures),
        "" if info.probes is None else str(info.probes),
        str(info.parked),
        "" if info.next_try is None else f"in {duration(max(0, info.next_try - now))}",
        ", ".join(values),
        "" if info.set_at is None else f"{info.set_by} at {clock(now)(info.set_at)}",
    )


def hold_open(name: str, actor: str, reason: str) -> None:
    with _engine() as engine:
        engine.breakers.hold_open(name, actor=actor, reason=reason)
        interval = engine.settings.heartbeat_interval
    console.print(
        line(f"no call through {name} is permitted from now on; obeyed within {interval:g} s"),
        soft_wrap=True,
    )


def set_values(
    name: str, failures: int | None, timeout: float | None, actor: str, reason: str
) -> None:
    with _engine() as engine:
        about = {"actor": actor, "reason": reason}
        engine.breakers.set(name, failure_threshold=failures, timeout=timeout, **about)
        interval = engine.settings.heartbeat_interval
    console.print(line(f"circuit breaker {name} is set; obeyed within {interval:g} s"))


def reset(name: str, actor: str, reason: str) -> None:
    with _engine() as engine:
        is_closed = engine.breakers.reset(name, actor=actor, reason=reason)
    how = "and is closed" if is_closed else "and closes in each process by itself"
    console.print(line(f"circuit breaker {name} has the values of its code, {how}"))
