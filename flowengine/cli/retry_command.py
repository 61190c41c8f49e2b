"""`flowengine retry`, `fork`, `skip` and `complete`: run steps again, or end them by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from flowengine.cli.streams import json_of

_REASON = click.option("--reason", default="", help="Recorded with the action.")
_ACTOR = click.option("--actor", help="The actor. By default the user of this computer.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_DRY_RUN = click.option("--dry-run", is_flag=True, help="List the steps that would run; run none.")
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
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@_FROM_STEP
@_PROGRAM
@_DRY_RUN
@_REASON
@_ACTOR
@_JSON
def retry(
    runs: Sequence[str],
    from_step: str | None,
    program: str | None,
    dry_run: bool,
    reason: str,
    actor: str | None,
    as_json: bool,
) -> None:
    """Run the failed steps of RUN again, and those skipped because of them.

    Steps that completed keep their results. With --from-step one step and all that depends on it
    run again, also in a run that goes on or has completed.
    """
    from flowengine.cli.database import acting_engine
    from flowengine.cli.targets import program_of_target

    given = None if program is None else program_of_target(program)
    shown: list[dict[str, Any]] = []
    with acting_engine() as engine:
        for info in [engine.find(prefix) for prefix in runs]:
            steps = engine.retries.steps_to_run(info.id, from_step=from_step, program=given)
            if not dry_run:
                about = {"reason": reason, "actor": _who(actor)}
                engine.retry(info.id, from_step=from_step, program=given, **about)
            state = engine.get(info.id).state
            shown.append({"run": info.id, "state": state, "steps": steps, "dry_run": dry_run})
    _show(shown, as_json, dry_run)


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
@_REASON
@_ACTOR
@_JSON
def fork(
    run_id: str,
    from_step: str | None,
    given: Sequence[str],
    program: str | None,
    key: str | None,
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
        new = engine.forks.fork(
            info.id,
            from_step=from_step,
            inputs=inputs,
            program=moved,
            reason=reason,
            actor=_who(actor),
            key=key,
        )
        state = engine.get(new).state
    if as_json:
        click.echo(json_of({"run": new, "forked_from": info.id, "state": state}))
        return
    _say(f"run {new} is a fork of {info.id[:8]}, and is {state}")


@click.command()
@click.argument("run_id", metavar="RUN")
@click.argument("step")
@_REASON
@_ACTOR
@_JSON
def skip(run_id: str, step: str, reason: str, actor: str | None, as_json: bool) -> None:
    """End STEP of RUN, which waits or has failed, without a result; the run goes on without it.

    Steps that need its result are skipped too. STEP is a path or an id.
    """
    _end(
        run_id,
        step,
        as_json,
        lambda engine, run: engine.skip(run, step, reason=reason, actor=_who(actor)),
        "skipped",
    )


@click.command()
@click.argument("run_id", metavar="RUN")
@click.argument("step")
@click.argument("value", required=False)
@_REASON
@_ACTOR
@_JSON
def complete(
    run_id: str, step: str, value: str | None, reason: str, actor: str | None, as_json: bool
) -> None:
    """Give STEP of RUN, which waits or has failed, its result: VALUE.

    VALUE is JSON, @file or - for the standard input; without it the result is null. STEP is a path
    or an id.
    """
    from flowengine.cli.send_command import json_value

    result = json_value(value)
    _end(
        run_id,
        step,
        as_json,
        lambda engine, run: engine.complete(run, step, result, reason=reason, actor=_who(actor)),
        "completed",
    )


def _end(run_id: str, step: str, as_json: bool, act: Callable[[Any, str], None], how: str) -> None:
    from flowengine.cli.database import acting_engine

    with acting_engine() as engine:
        info = engine.find(run_id)
        act(engine, info.id)
        state = engine.get(info.id).state
    if as_json:
        click.echo(json_of({"run": info.id, "step": step, "ended": how, "state": state}))
        return
    _say(f"{step} is {how}; run {info.id[:8]} is {state}")


def _show(shown: Sequence[dict[str, Any]], as_json: bool, dry_run: bool) -> None:
    if as_json:
        click.echo(json_of(list(shown)))
        return
    for each in shown:
        steps = each["steps"]
        count = "1 step" if len(steps) == 1 else f"{len(steps):,} steps"
        if not dry_run:
            runs = "runs" if len(steps) == 1 else "run"
            _say(f"run {each['run'][:8]} is {each['state']}: {count} {runs} again")
            continue
        _say(f"run {each['run'][:8]}: {count} would run again; a dry run changes nothing")
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


def _who(actor: str | None) -> str:
    from flowengine.cli.control_command import user_name

    return user_name() if actor is None else actor


def _say(text: str) -> None:
    from flowengine.cli.terminal import console, line

    console.print(line(text), soft_wrap=True)
