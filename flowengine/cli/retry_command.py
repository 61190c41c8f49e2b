"""`flowengine retry`, `fork`, `skip` and `complete`: run steps again, or end them by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from flowengine.cli.control_command import (
    ACTOR,
    CHOICE,
    JSON,
    REASON,
    Request,
    named_actor,
    show_result,
)
from flowengine.cli.run_filters import resolved, with_options
from flowengine.cli.streams import json_of

if TYPE_CHECKING:
    from flowengine.engine import Engine

_DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="List the steps that would run, or count the runs; run none."
)
_CHECK = click.option("--dry-run", is_flag=True, help="Say whether it is possible; change nothing.")
_FROM_STEP = click.option(
    "--from-step", metavar="STEP", help="Run this step, and every step that depends on it."
)
_PROGRAM = click.option(
    "--program",
    metavar="TARGET",
    help="Move to the program of this workflow of today's code: MODULE:WORKFLOW.",
)
_MAX_SHOWN = 50  # steps of a dry run


def commands() -> list[click.Command]:
    return [retry, fork, skip, complete]


@click.command()
@with_options(*CHOICE, _FROM_STEP, _PROGRAM, _DRY_RUN, REASON, ACTOR, JSON)
def retry(from_step: str | None, program: str | None, as_json: bool, **given: Any) -> None:
    """Run the failed steps of RUN again, and those skipped because of them.

    Steps that completed keep their results. With --from-step one step and all that depends on it
    run again, also in a run that goes on or has completed. Give RUN, an id or a prefix of one, once
    or more often; or choose runs by a filter, and count them first with --dry-run: without --state
    these are failed runs.
    """
    from flowengine.cli.database import acting_engine
    from flowengine.cli.targets import program_of_target

    request = Request.of(given)
    request.check()
    moved = None if program is None else program_of_target(program)
    chosen: dict[str, Any] = {"from_step": from_step, "program": moved}
    with acting_engine() as engine:
        found = [engine.find(prefix).id for prefix in request.runs]  # before the first is changed
        shown = [_retried(engine, run_id, request, chosen) for run_id in found]
        if not request.runs:
            filters = resolved(engine, request.filters)
            result = engine.retry_all(**chosen, **filters, **request.manner)
        now = engine.database.now()
    if not request.runs:
        show_result("retry", result, {}, now, as_json)
    _show(shown, as_json, request.dry_run)
    sys.exit(1 if any("refused" in each for each in shown) else 0)


def _retried(
    engine: Engine, run_id: str, request: Request, chosen: dict[str, Any]
) -> dict[str, Any]:
    """Retry a run, and return how it was: its steps that run again, or why it refuses."""
    from flowengine.errors import ActionRefused

    about: dict[str, Any] = {"run": run_id, "dry_run": request.dry_run}
    try:
        about["steps"] = engine.retries.steps_to_run(run_id, **chosen)
        if not request.dry_run:
            engine.retry(run_id, **chosen, reason=request.reason, actor=request.actor)
    except ActionRefused as refused:
        about |= {"steps": [], "refused": refused.reason}
    return {**about, "state": engine.get(run_id).state}


@click.command()
@click.argument("run_id", metavar="RUN")
@_FROM_STEP
@click.option(
    *("--input", "-i", "given"),
    multiple=True,
    metavar="NAME=VALUE",
    help="Another input: JSON, or a text.",
)
@_PROGRAM
@click.option("--key", help="A second fork with the same key returns the first.")
@click.option("--dry-run", is_flag=True, help="List the steps that would run; start no run.")
@with_options(REASON, ACTOR, JSON)
def fork(
    run_id: str,
    from_step: str | None,
    given: Sequence[str],
    program: str | None,
    key: str | None,
    dry_run: bool,
    reason: str,
    actor: str | None,
    as_json: bool,
) -> None:
    """Start a new run that keeps the results of RUN.

    It runs the failed steps, or with --from-step that step and all that depends on it; with other
    inputs and without a step all steps. RUN does not change.
    """
    from flowengine.cli.database import acting_engine
    from flowengine.cli.targets import program_of_target

    moved = None if program is None else program_of_target(program)
    inputs = dict(map(_input, given)) if given else None
    with acting_engine() as engine:
        info = engine.find(run_id)
        chosen: dict[str, Any] = {"from_step": from_step, "inputs": inputs, "program": moved}
        if dry_run:
            steps = engine.forks.steps_to_run(info.id, **chosen)
            shown = {"run": info.id, "state": info.state, "steps": steps, "dry_run": True}
            _show([shown], as_json, dry_run=True, again="in a fork")
            return
        about: dict[str, Any] = {"reason": reason, "actor": named_actor(actor), "key": key}
        new = engine.forks.fork(info.id, **chosen, **about)
        state = engine.get(new).state
    if as_json:
        click.echo(json_of({"run": new, "forked_from": info.id, "state": state}))
        return
    _say(f"run {new} is a fork of {info.id[:8]}, and is {state}")


@click.command()
@click.argument("run_id", metavar="RUN")
@click.argument("step")
@with_options(_CHECK, REASON, ACTOR, JSON)
def skip(run_id: str, step: str, **given: Any) -> None:
    """End STEP of RUN, which waits or has failed, without a result; the run goes on without it.

    Steps that need its result are skipped too. STEP is a path or an id.
    """
    _end(
        run_id, step, lambda engine, run, about: engine.skip(run, step, **about), "skipped", **given
    )


@click.command()
@click.argument("run_id", metavar="RUN")
@click.argument("step")
@click.argument("value", required=False)
@with_options(_CHECK, REASON, ACTOR, JSON)
def complete(run_id: str, step: str, value: str | None, **given: Any) -> None:
    """Give STEP of RUN, which waits or has failed, its result: VALUE.

    VALUE is JSON, @file or - for the standard input; without it the result is null. STEP is a path
    or an id.
    """
    from flowengine.cli.send_command import json_value

    result = json_value(value)
    _end(
        run_id,
        step,
        lambda engine, run, about: engine.complete(run, step, result, **about),
        "completed",
        **given,
    )


def _end(
    run_id: str,
    step: str,
    act: Callable[[Engine, str, dict[str, Any]], None],
    how: str,
    *,
    dry_run: bool,
    reason: str,
    actor: str | None,
    as_json: bool,
) -> None:
    from flowengine.cli.database import acting_engine

    with acting_engine() as engine:
        info = engine.find(run_id)
        act(engine, info.id, {"reason": reason, "actor": named_actor(actor), "dry_run": dry_run})
        state = engine.get(info.id).state
    if as_json:
        about = {"run": info.id, "step": step, "ended": how, "state": state, "dry_run": dry_run}
        click.echo(json_of(about))
        return
    if dry_run:
        _say(f"{step} would be {how}; a dry run changes nothing")
        return
    _say(f"{step} is {how}; run {info.id[:8]} is {state}")


def _show(
    shown: Sequence[dict[str, Any]], as_json: bool, dry_run: bool, again: str = "again"
) -> None:
    if as_json:
        click.echo(json_of(list(shown)))
        return
    for each in shown:
        steps = each["steps"]
        if "refused" in each:
            _say(f"run {each['run'][:8]} refuses retry: {each['refused']}")
            continue
        count = "1 step" if len(steps) == 1 else f"{len(steps):,} steps"
        if not dry_run:
            runs = "runs" if len(steps) == 1 else "run"
            _say(f"run {each['run'][:8]} is {each['state']}: {count} {runs} again")
            continue
        _say(f"run {each['run'][:8]}: {count} would run {again}; a dry run changes nothing")
        for path in steps[:_MAX_SHOWN]:
            _say(f"  {path}")
        if len(steps) > _MAX_SHOWN:
            _say(f"  … and {len(steps) - _MAX_SHOWN:,} more")


def _input(text: str) -> tuple[str, Any]:
    import json

    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter("write NAME=VALUE", param_hint="--input")
    try:
        return name, json.loads(value)
    except (json.JSONDecodeError, RecursionError):
        return name, value


def _say(text: str) -> None:
    from flowengine.cli.terminal import console, line

    console.print(line(text), soft_wrap=True)
