"""`flowengine workers`: show the workers, and change their limits while they work.

Like `commands`, this imports neither a database nor rich: help must be shown at once.
"""

from __future__ import annotations

import click

from flowengine.cli.control_command import ACTOR, JSON, REASON, named_actor
from flowengine.settings import MAX_HELD

_NONE = "none"


def _limit(_: click.Context, option: click.Parameter, given: str | None) -> int | str | None:
    """Return a whole number up to the most, or `none`."""
    if given is None or given == _NONE:
        return given
    least = 0 if option.name == "tasks" else 1
    try:
        number = int(given)
    except ValueError:
        number = -1
    if not least <= number <= MAX_HELD:
        what = f"{given[:40]!r} is neither a number from {least} to {MAX_HELD:,} nor `none`"
        raise click.BadParameter(what)
    return number


@click.group(invoke_without_command=True)
@click.pass_context
def workers(context: click.Context) -> None:
    """Show the workers, and change their limits while they work."""
    if context.invoked_subcommand is None:
        context.invoke(list_workers)


@workers.command("list")
@JSON
def list_workers(as_json: bool = False) -> None:
    """Show all registered workers: what they hold, their limits and their last heartbeat."""
    from flowengine.cli import workers_view

    workers_view.show_list(as_json=as_json)


@workers.command("set")
@click.argument("name", metavar="WORKER")
@click.option(
    "--tasks", callback=_limit, metavar="N|none", help="Tries that it holds, at most; 0: drain."
)
@click.option(
    "--workflows",
    callback=_limit,
    metavar="N|none",
    help="Runs that it holds tries of, at most.",
)
@REASON
@ACTOR
@JSON
def set_limits(
    name: str, reason: str, actor: str | None, as_json: bool, **limits: int | str | None
) -> None:
    """Limit how much the workers of one name hold, within the interval of their heartbeat.

    A limit that is set is kept when they are started again, and goes before that of their
    settings; `none` removes it.
    """
    from flowengine.cli import workers_view

    given = {option: value for option, value in limits.items() if value is not None}
    if not given:
        raise click.UsageError("say which limit to set: --tasks, --workflows or both")
    changes = {option: None if value == _NONE else int(value) for option, value in given.items()}
    workers_view.set_limits(name, changes, named_actor(actor), reason, as_json=as_json)


@workers.command()
@click.argument("name", metavar="WORKER")
@click.option(
    "--wait",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Wait until it holds no task; the exit code is 1 if it still does then.",
)
@REASON
@ACTOR
@JSON
def drain(name: str, wait: float | None, reason: str, actor: str | None, as_json: bool) -> None:
    """Let the workers of one name finish their tasks and claim no others: before they are stopped.

    They obey within the interval of their heartbeat and stay idle, also when they are started
    again, until `undrain`. A Celery worker consumes none of its queues meanwhile, those of plain
    tasks neither.
    """
    from flowengine.cli import workers_view

    workers_view.drain(name, wait, named_actor(actor), reason, as_json=as_json)


@workers.command()
@click.argument("name", metavar="WORKER")
@REASON
@ACTOR
@JSON
def undrain(name: str, reason: str, actor: str | None, as_json: bool) -> None:
    """Let drained workers claim tasks again, as many as their settings say."""
    from flowengine.cli import workers_view

    workers_view.undrain(name, named_actor(actor), reason, as_json=as_json)


COMMANDS = (workers,)
