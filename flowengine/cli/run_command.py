"""`flowengine run` and `flowengine resume`: start runs, and follow them until they end."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from flowengine.assembly import FlowEngine, default_engine
from flowengine.cli import configuration
from flowengine.cli.database import starting_engine
from flowengine.cli.progress import printed_failures, watch
from flowengine.cli.streams import json_of
from flowengine.cli.targets import load_modules, prepare, prepare_named
from flowengine.cli.terminal import SafeConsole, console, line
from flowengine.engine import Run, RunInfo
from flowengine.engine.diverged_runs import try_diverged_again
from flowengine.engine.recovery import alarm_unserved_tasks
from flowengine.evaluator.states import RunState
from flowengine.secret_keys import set_secret_key_source
from flowengine.settings import Settings
from flowengine.store import Store
from flowengine.store.database import system_clock


@printed_failures()
def run(
    targets: Sequence[str],
    workflow: str | None,
    modules: Sequence[str],
    given: Sequence[str],
    start: Mapping[str, Any],
    *,
    no_wait: bool,
    as_json: bool,
) -> None:
    settings = _settings()
    installed = getattr(configuration.celery_app(), "flowengine", None)
    fleet = installed if isinstance(installed, FlowEngine) else None
    # Report invalid inputs before a database is created. Workers have code that we have not.
    needs_code = not no_wait and fleet is None
    prepared = prepare(targets, workflow, modules, given, settings, needs_code=needs_code)
    if no_wait and fleet is None:
        with starting_engine(settings) as engine:
            click.echo(prepared.start(engine, **start))
        return
    engine = fleet.engine if fleet else default_engine(settings)
    handle = engine.run(prepared.start(engine, **start))
    if no_wait:
        click.echo(handle.id)
        return
    if fleet:
        alarm_unserved_tasks(engine)  # if no worker runs, nobody else does it
    try:
        info = _follow(handle, as_json)
    except KeyboardInterrupt:
        goes_on = f"`flowengine resume {prepared.modules}` continues it"
        if fleet:
            goes_on = "the workers of the app continue it"
        show = f"`flowengine show {handle.id[:8]}` shows its state"
        raise click.ClickException(f"stopped. The run is stored: {goes_on}, {show}") from None
    if as_json:
        click.echo(json_of(asdict(info)))
    else:
        _print_outcome(info)
        _print_next_commands(info, engine.database)
    sys.exit(0 if info.state == RunState.COMPLETED else 1)


def start(
    name: str,
    folder: str | None,
    modules: Sequence[str],
    given: Sequence[str],
    options: Mapping[str, Any],
) -> None:
    settings = _settings()
    installed = getattr(configuration.celery_app(), "flowengine", None)
    prepared = prepare_named(name, folder, modules, given, settings)
    if isinstance(installed, FlowEngine):
        click.echo(prepared.start(installed.engine, **options))
        return
    with starting_engine(settings) as engine:
        click.echo(prepared.start(engine, **options))


@printed_failures()
def resume(modules: Sequence[str], *, as_json: bool) -> None:
    settings = _settings()
    load_modules(modules)
    began = system_clock()  # before the engine, which continues the runs at once
    engine = default_engine(settings)
    alarm_unserved_tasks(engine)  # clears alarms that these modules resolve
    try_diverged_again(engine)
    unfinished = [
        info
        for state in (RunState.CANCELLING, RunState.RUNNING)  # a held run waits for its release
        for info in reversed(engine.list(state=state, limit=1000))
    ]
    ended = []
    for info in unfinished:
        ended.append(_follow(engine.run(info.id), as_json, since=began, stop_at_alarm=True))
        if not as_json:
            _print_outcome(ended[-1])
    if as_json:
        click.echo(json_of([asdict(info) for info in ended]))
    elif not ended:
        console.print("no unfinished runs")
    sys.exit(0 if all(info.state == RunState.COMPLETED for info in ended) else 1)


def _settings() -> Settings:
    settings = configuration.settings()
    if settings.secret_keys:  # of an app that has no FlowEngine, too
        set_secret_key_source(lambda: settings.secret_keys)
    return settings


def _follow(
    handle: Run[Any], as_json: bool, since: int = 0, stop_at_alarm: bool = False
) -> RunInfo:
    out = SafeConsole(quiet=True) if as_json else console
    return watch(handle, out, since=since, stop_at_alarm=stop_at_alarm)


def _print_outcome(info: RunInfo) -> None:
    if not info.is_final:
        return  # the alarm is already printed
    if info.state == RunState.COMPLETED:
        outputs = info.outputs or {}
        value = outputs["result"] if set(outputs) == {"result"} else outputs
        outcome = line(("result  ", "dim"), (json_of(value, indent=None), "bold green"))
    else:
        word = "cancelled" if info.state == RunState.CANCELLED else "failed"
        outcome = line((f"{word}  ", "dim"), (info.error_text or "", "bold red"))
    console.print(outcome, soft_wrap=True)


def _print_next_commands(info: RunInfo, database: Store) -> None:
    console.print(line(("stored in ", "dim"), database.name), soft_wrap=True)
    show = (f"flowengine show {info.id[:8]}", ("   every step with its time", "dim"))
    newest = ("flowengine list           ", ("the newest runs", "dim"))
    console.print(line(("see     ", "dim"), *show))
    console.print(line("        ", *newest))
