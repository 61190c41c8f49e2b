"""`flowengine cancel`, `hold` and `release`: actions on runs, given by id or by a filter."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from flowengine.cli.run_filters import FILTERS, given_filters, resolved, with_options
from flowengine.cli.streams import json_of

if TYPE_CHECKING:
    from flowengine.engine import Engine
    from flowengine.engine.bulk_actions import BulkResult
    from flowengine.engine.results import RunInfo
    from flowengine.evaluator.actions import ActionKind

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
    filters: Mapping[str, Any]  #: of the engine, as they were given
    everything: bool
    dry_run: bool
    reason: str
    actor: str

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Request:
        """Return the request of the values of the options below."""
        own = ("runs", "everything", "dry_run", "reason")
        actor = named_actor(given["actor"])
        return cls(filters=given_filters(given), actor=actor, **{name: given[name] for name in own})

    @property
    def manner(self) -> dict[str, Any]:
        return {"dry_run": self.dry_run, "reason": self.reason, "actor": self.actor}

    def check(self) -> None:
        has_filter = bool(self.filters) or self.everything
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


REASON = click.option("--reason", default="", help="Recorded with the action.")
ACTOR = click.option("--actor", help="The actor. By default the user of this computer.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
#: The runs that a command acts on.
CHOICE = (
    click.argument("runs", nargs=-1, metavar="[RUN]..."),
    *FILTERS.values(),
    click.option("--all", "everything", is_flag=True, help="All runs that take the action."),
)
_DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Count the runs, and show the first; change nothing."
)
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
            filters = resolved(engine, request.filters)
            result = engine.act_on_all(ActionKind(kind), **filters, **request.manner)
        states = {run_id: engine.get(run_id).state for run_id in _named(engine, request)}
        now = engine.database.now()
    show_result(kind, result, states, now, as_json)


def show_result(
    kind: str, result: BulkResult, states: Mapping[str, str], now: int, as_json: bool
) -> None:
    """Print how many runs have taken an action; exits with 1 if one has refused it."""
    if as_json:
        _print_json(kind, result, states)
    else:
        _print(kind, result, states, now)
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
    shown: dict[str, Any] = {
        "action": kind,
        "dry_run": result.dry_run,
        "matched": result.matched,
        "applied": result.applied,
        "refused": result.refused,
        "refusals": result.refusals,
    }
    if result.dry_run and not states:
        shown["first"] = [{**asdict(info), "status": info.status} for info in result.first]
    click.echo(json_of({**shown, "states": dict(states)} if states else shown))


def _print(kind: str, result: BulkResult, states: Mapping[str, str], now: int) -> None:
    from flowengine.cli.terminal import console, line, print_table

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
        if result.first:
            from flowengine.cli.list_command import table_of_runs

            print_table(table_of_runs(result.first, now))
        if (hidden := result.allowed - len(result.first)) > 0 and not states:
            console.print(line(f"… and {hidden:,} more"))
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
