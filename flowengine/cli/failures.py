"""Errors of commands: one sentence and an exit code, never a traceback.

The exit code is 1 if the command failed, 2 if it was called wrongly.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from flowengine.cli import configuration
from flowengine.cli.streams import accept_any_text, message
from flowengine.errors import FlowengineError
from flowengine.printable import masked_url


class Commands(click.Group):
    """A group of commands whose errors are readable."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        accept_any_text()
        with _readable_errors():
            _refuse_undecodable(args)
            return super().make_context(info_name, args, parent, **extra)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # Old versions of click take a name that begins with any sign for an option, and print help.
        if args[0] and not args[0][0].isalnum() and args[0][0] != "-":
            ctx.fail(f"No such command {args[0]!r}.")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        if not ctx.params.get("traceback"):
            with _readable_errors():
                return super().invoke(ctx)
        try:
            return super().invoke(ctx)
        except click.ClickException as problem:
            raise problem.__cause__ or problem from None


@contextmanager
def _readable_errors() -> Iterator[None]:
    try:
        yield
    except click.ClickException as problem:
        problem.message = message(problem.message)  # type: ignore[misc]
        raise
    except (click.exceptions.Exit, click.Abort):
        raise
    except Exception as problem:
        if isinstance(problem, OSError) and problem.errno == errno.EPIPE:
            raise  # click ends the command quietly
        raise click.ClickException(message(describe(problem))) from problem


def _refuse_undecodable(args: Sequence[str]) -> None:
    """Refuse bytes that are not text: no database and no terminal could take them."""
    for arg in args:
        try:
            arg.encode()
        except UnicodeEncodeError:
            raise click.UsageError(f"the argument {arg!r} is not valid UTF-8") from None


def describe(problem: Exception) -> str:
    """Return an error as one sentence for the person who called the command."""
    from flowengine.store.failures import DatabaseFailure, cause_of  # only a failure needs it here

    match problem:
        case FlowengineError():
            return str(problem)
        case DatabaseFailure():
            cause = cause_of(problem)
            url = masked_url(configuration.database_url())
            return (
                f"the database {url} cannot be used: {_first_line(cause)}; is "
                "FLOWENGINE_DATABASE_URL right, and is its server running?"
            )
        case RecursionError():
            return "the program or a value is nested too deeply"
        case UnicodeDecodeError():
            return f"a file is not UTF-8: {problem}"
        case OSError(strerror=str(reason)) if problem.filename:
            return f"{problem.filename}: {reason}"
    return (
        f"{type(problem).__name__}: {_first_line(problem)}; this is unexpected: "
        "`flowengine --traceback …` shows where it happened"
    )


def _first_line(problem: BaseException | None) -> str:
    return str(problem).strip().partition("\n")[0]
