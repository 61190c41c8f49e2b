"""`flowengine token`: access tokens of the wire protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from flowengine.access_tokens import Scope
from flowengine.cli.run_filters import AGE
from flowengine.cli.streams import json_of

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def token() -> None:
    """Manage the access tokens of agents and programs (`flowengine api`)."""


@token.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice([scope.value for scope in Scope]),
    help="A scope of the token; may be repeated. By default claim.",
)
@click.option("--task-list", "lists", multiple=True, help="It claims from this list alone.")
@click.option("--tenant", default="", help="It works for the runs of this tenant alone.")
@click.option("--expires", type=AGE, metavar="AGE", help="It is valid for 12h, 90d, ...")
@_as_json
def create(
    name: str,
    scopes: Sequence[str],
    lists: Sequence[str],
    tenant: str,
    expires: int | None,
    as_json: bool,
) -> None:
    """Create a token and print it.

    It is printed once: the database has its digest alone.
    """
    from flowengine.cli.database import open_engine

    with open_engine() as engine:
        secret, made = engine.tokens.create(
            name,
            scopes or [Scope.CLAIM],
            task_lists=lists,
            tenant=tenant,
            seconds=None if expires is None else expires / 1000,
        )
    if as_json:
        shown = asdict(made)
        del shown["digest"]
        click.echo(json_of({"token": secret, **shown}))
    else:
        click.echo(secret)


@token.command("list")
@_as_json
def list_tokens(as_json: bool) -> None:
    """List the tokens; they themselves are not stored."""
    from flowengine.cli.database import open_engine

    with open_engine() as engine:
        found, now = engine.tokens.list(), engine.database.now()
    if as_json:
        shown = [asdict(each) | {"state": each.state(now)} for each in found]
        for row in shown:
            del row["digest"]
        click.echo(json_of(shown))
        return
    for each in found:
        lists = ", ".join(each.task_lists) or "all task lists"
        whose = f"tenant {each.tenant}" if each.tenant else "all tenants"
        click.echo(f"{each.name}: {each.state(now)}; {', '.join(each.scopes)}; {lists}; {whose}")


@token.command()
@click.argument("name")
def revoke(name: str) -> None:
    """Revoke a token; servers notice it within two seconds."""
    from flowengine.cli.database import open_engine

    with open_engine() as engine:
        engine.tokens.revoke(name)
    click.echo(f"token {name} is revoked")
