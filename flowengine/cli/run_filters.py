"""The options that choose runs: those of `list`, and of every command that acts on many runs.

Like `commands`, this imports neither a database nor rich: help must be shown at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from flowengine import retention

if TYPE_CHECKING:
    from flowengine.engine import Engine
    from flowengine.engine.queries import RunQueries

    _ParamType = click.ParamType[Any]
else:  # the oldest supported click has no generic one
    _ParamType = click.ParamType

#: In the order in which readers list them.
STATES = ("QUEUED", "RUNNING", "HELD", "CANCELLING", "COMPLETED", "FAILED", "CANCELLED")
WAITS = (
    *("hold", "diverged", "answer", "child run", "limit", "rate", "circuit"),
    *("retry", "worker", "time", "steps"),
)
_LONGEST_AGE = 10**14  #: milliseconds
_OPTION = {"id_prefix": "id", "error_type": "error"}  #: whose filter has another name


class _Age(_ParamType):
    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            age = value if isinstance(value, int) else retention.age_of(value)
        except ValueError as problem:
            self.fail(f"{value!r} is no age: it must be {problem}", param, ctx)
        except OverflowError:
            age = _LONGEST_AGE + 1
        if age > _LONGEST_AGE:
            self.fail("that is longer than a database has existed", param, ctx)
        return age


class _Pair(_ParamType):
    name = "NAME=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        name, sign, text = str(value).partition("=")
        if not sign or not name:
            self.fail(f"{value!r} is no label: write NAME=VALUE", param, ctx)
        return name, text


AGE = _Age()

#: By option, the filter of the engine. Its name is that of the option's value.
FILTERS: Mapping[str, Callable[..., Any]] = {
    "workflow": click.option("--workflow", help="Only runs of this workflow: its name."),
    "state": click.option(
        "--state",
        multiple=True,
        type=click.Choice(STATES, case_sensitive=False),
        help="Only runs in this state; several are possible.",
    ),
    "label": click.option(
        "--label", multiple=True, type=_Pair(), help="Only runs with this label."
    ),
    "key": click.option("--key", help="Only the runs that had this idempotency key."),
    "id_prefix": click.option(
        "--id", "id_prefix", metavar="PREFIX", help="Only runs whose id begins so."
    ),
    "newer_than": click.option(
        *("--newer-than", "--since", "newer_than"),
        type=AGE,
        metavar="AGE",
        help="Started less than 2h, 30d, ... ago.",
    ),
    "older_than": click.option(
        "--older-than", type=AGE, metavar="AGE", help="Started longer than that ago."
    ),
    "error_type": click.option(
        *("--error", "error_type"),
        metavar="TYPE",
        help="Had this type of error: failed with it, caught it, or it was the cause.",
    ),
    "server": click.option("--server", help="A step of which this server runs now."),
    "alarm": click.option(
        "--alarm/--no-alarm", default=None, help="Only runs with, or without, an alarm."
    ),
    "parent": click.option("--parent", metavar="RUN", help="Only the child runs of this run."),
    "waits_for": click.option(
        "--waits-for",
        type=click.Choice(WAITS),
        metavar="KIND",
        help=f"One of {', '.join(WAITS)}.",
    ),
    "tenant": click.option("--tenant", help='Only runs of this tenant; "": of none.'),
    "agents": click.option(
        "--agents", is_flag=True, help="Only runs of calls that turns of agents made."
    ),
}


#: An ended run waits for nothing, and has neither a server nor an alarm. Child runs are removed
#: with their root, and the age is that of the end.
_NOT_OF_ENDED = ("state", "older_than", "server", "alarm", "parent", "waits_for")
FILTERS_OF_ENDED = {name: each for name, each in FILTERS.items() if name not in _NOT_OF_ENDED}


def with_options(*options: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decorator that gives a function these options, in this order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def given_filters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the filters of the engine that somebody has given, of the values of the options."""
    found: dict[str, Any] = {}
    for name in FILTERS:
        value = given.get(name)
        if value is None or value == () or (name == "agents" and not value):
            continue
        if value == "" and name != "tenant":  # as of a script that has not set its variable
            raise click.UsageError(f"--{_OPTION.get(name, name)} is empty: leave it out for any")
        if name == "state":
            value = [state.upper() for state in value]
        elif name == "label":
            value = dict(value)
        elif name in ("newer_than", "older_than"):
            value /= 1000
        found[name] = value
    return found


def resolved(engine: Engine | RunQueries, filters: Mapping[str, Any]) -> dict[str, Any]:
    """Return filters with the whole id of the parent, whose prefix was given."""
    parent = filters.get("parent")
    return {**filters, **({} if parent is None else {"parent": engine.find(parent).id})}
