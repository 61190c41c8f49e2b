"""`flowengine cancel`, `hold` and `release`: actions on runs, given by id or by a filter."""

from __future__ import annotations

import getpass
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from flowengine.cli.streams import json_of

if TYPE_CHECKING:
    from flowengine.engine import Engine
    from flowengine.engine.bulk_actions import BulkResult
    from flowengine.engine.results import RunInfo
    from flowengine.evaluator.actions import ActionKind

#: In the order in which readers list them.
STATES = ("QUEUED", "RUNNING", "HELD", "CANCELLING", "COMPLETED", "FAILED", "CANCELLED")
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_PAST = {"cancel": "cancelled", "hold": "held", "release": "released", "retry": "retried"}
_CHOICE = """Give RUN, an id or a prefix of one, once or more often; or choose runs by a filter, and
count them first with --dry-run."""
_HELP = {
    "cancel": "Cancel runs: their always blocks run, then they are CANCELLED.",
    "hold": "Hold runs: no worker claims their tasks; those that run may end.",
    "release": "Release held runs: workers claim their tasks again.",
}


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of a command that acts on runs."""

    runs: Sequence[str]
    workflow: str | None
    state: str | None
    labels: Mapping[str, str]
    older_than: timedelta | None
    everything: bool
    dry_run: bool
    reason: str
    actor: str

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Request:
        """Return the request of the values of the options below."""
        state, labels = given["state"], dict(given["labels"])
        actor = named_actor(given["actor"])
        return cls(**{**given, "state": state and state.upper(), "labels": labels, "actor": actor})

    @property
    def filter(self) -> dict[str, Any]:
        chosen = {"workflow": self.workflow, "state": self.state}
        return {**chosen, "labels": self.labels, "older_than": self.older_than}

    @property
    def manner(self) -> dict[str, Any]:
        return {"dry_run": self.dry_run, "reason": self.reason, "actor": self.actor}

    def check(self) -> None:
        has_filter = any(self.filter.values()) or self.everything
        if self.runs and has_filter:
            raise click.UsageError("give runs by their ids or by a filter, not both")
        if not self.runs and not has_filter:
            raise click.UsageError("name a run, or a filter like --workflow, or --all for all runs")


def commands() -> list[click.Command]:
    return [_command(kind) for kind in _HELP]


def _command(kind: str) -> click.Command:
    def run(as_json: bool, **given: Any) -> None:
        act(kind, Request.of(given), as_json)

    return click.command(kind, help=f"{_HELP[kind]}\n\n{_CHOICE}")(with_options(*OPTIONS)(run))


def with_options(*options: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decorator that gives a function these options, in this order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _age(_: click.Context, __: click.Parameter, text: str | None) -> timedelta | None:
    if text is None:
        return None
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter("write a number and its unit: 30d, 12h, 90m or 45s")
    try:
        return timedelta(**{_UNITS[match[2]]: float(match[1])})
    except OverflowError:
        raise click.BadParameter("that is longer than a database has existed") from None


def _labels(
    _: click.Context, __: click.Parameter, given: Sequence[str]
) -> Sequence[tuple[str, str]]:
    pairs = [text.partition("=") for text in given]
    if any(not name or not equals for name, equals, _ in pairs):
        raise click.BadParameter("write NAME=VALUE")
    return [(name, value) for name, _, value in pairs]


REASON = click.option("--reason", default="", help="Recorded with the action.")
ACTOR = click.option("--actor", help="The actor. By default the user of this computer.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
#: The runs that a command acts on.
CHOICE = (
    click.argument("runs", nargs=-1, metavar="[RUN]..."),
    click.option("--workflow", help="Runs of this workflow: its qualified or short name."),
    click.option("--state", type=click.Choice(STATES, case_sensitive=False)),
    click.option(
        *("--label", "labels"),
        multiple=True,
        metavar="NAME=VALUE",
        callback=_labels,
        help="Runs with this label.",
    ),
    click.option(
        "--older-than", metavar="AGE", callback=_age, help="Runs started longer ago: 30d, 12h, 90m."
    ),
    click.option("--all", "everything", is_flag=True, help="All runs that take the action."),
)
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Count the runs, and change nothing.")
OPTIONS = (*CHOICE, _DRY_RUN, REASON, ACTOR, JSON)


def act(kind: str, request: Request, as_json: bool) -> None:
    """Apply an action to the runs of a request; exits with 1 if one has refused it."""
    from flowengine.cli.database import acting_engine
    from flowengine.evaluator.actions import ActionKind

    request.check()
    with acting_engine() as engine:
        if request.runs:
            result = _act_on_each(engine, ActionKind(kind), request)
        else:
            result = engine.act_on_all(ActionKind(kind), **request.filter, **request.manner)
        states = {run_id: engine.get(run_id).state for run_id in _named(engine, request)}
    show_result(kind, result, states, as_json)


def show_result(kind: str, result: BulkResult, states: Mapping[str, str], as_json: bool) -> None:
    """Print how many runs have taken an action; exits with 1 if one has refused it."""
    if as_json:
        _print_json(kind, result, states)
    else:
        _print(kind, result, states)
    sys.exit(1 if result.refused else 0)


def _named(engine: Engine, request: Request) -> list[str]:
    return [engine.find(prefix).id for prefix in request.runs]


def _act_on_each(engine: Engine, kind: ActionKind, request: Request) -> BulkResult:
    from flowengine.engine.bulk_actions import BulkResult
    from flowengine.errors import ActionRefused
    from flowengine.evaluator.actions import FULFILLED

    found = [engine.find(prefix) for prefix in request.runs]  # before the first is changed
    result = BulkResult(kind, request.dry_run, matched=len(found))
    for info in found:
        try:
            if not request.dry_run:
                engine.control.act(info.id, kind, reason=request.reason, actor=request.actor)
                result.applied += 1
            elif info.state not in FULFILLED.get(kind, ()):
                _check(kind, info)
        except ActionRefused as refused:
            result.refuse(info.id, refused)
    return result


def _check(kind: ActionKind, info: RunInfo) -> None:
    from flowengine.errors import ActionRefused
    from flowengine.evaluator.actions import why_refused

    if problem := why_refused(kind, info.state):
        raise ActionRefused(info.id, kind, problem)


def _print_json(kind: str, result: BulkResult, states: Mapping[str, str]) -> None:
    shown = {
        "action": kind,
        "dry_run": result.dry_run,
        "matched": result.matched,
        "applied": result.applied,
        "refused": result.refused,
        "refusals": result.refusals,
    }
    click.echo(json_of({**shown, "states": dict(states)} if states else shown))


def _print(kind: str, result: BulkResult, states: Mapping[str, str]) -> None:
    from flowengine.cli.terminal import console, line

    for run_id, state in states.items():
        if run_id not in result.refusals:
            console.print(line(f"run {run_id[:8]} is {state}"))
    for run_id, reason in result.refusals.items():
        console.print(line(f"run {run_id[:8]} refuses {kind}: {reason}"), soft_wrap=True)
    if (more := result.refused - len(result.refusals)) > 0:
        console.print(line(f"… and {more:,} more refusals"))
    if result.dry_run:
        runs = "1 run matches" if result.allowed == 1 else f"{result.allowed:,} runs match"
        console.print(line(f"{runs}; a dry run changes nothing"))
    elif not states:
        console.print(line(f"{result.applied:,} of {result.matched:,} runs {_PAST[kind]}"))


def named_actor(given: str | None) -> str:
    """Return the actor of a command: without one, the user of this computer."""
    return _user_name() if given is None else given


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        return ""
