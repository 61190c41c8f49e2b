"""`flowengine mcp`: the workflows and event facets of program files as tools."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from ipaddress import ip_address

import click

from flowengine.assembly import FlowEngine, default_engine
from flowengine.assembly.program_files import load_program
from flowengine.cli import configuration
from flowengine.cli.targets import load_modules
from flowengine.secret_keys import set_secret_key_source


def serve(files: Sequence[str], modules: Sequence[str], http: str | None, wait: float) -> None:
    from flowengine.sdk import mcp  # needs the extra

    settings = configuration.settings()
    host, port = address_of(http, has_token=bool(settings.mcp_token)) if http else ("", 0)
    if settings.secret_keys:
        set_secret_key_source(lambda: settings.secret_keys)
    with redirect_stdout(sys.stderr):  # standard output is the protocol's
        load_modules(modules)
    program = load_program(files, settings=settings)
    installed = getattr(configuration.celery_app(), "flowengine", None)
    fleet = installed if isinstance(installed, FlowEngine) else None
    engine = fleet.engine if fleet else default_engine(settings)
    if not http:
        mcp.serve_stdio(engine, program, wait=wait)
        return
    click.echo(f"serving on http://{host}:{port}/mcp", err=True)
    mcp.serve_http(engine, program, host, port, wait=wait, token=settings.mcp_token)


def address_of(text: str, *, has_token: bool) -> tuple[str, int]:
    host, _, number = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not number.isdecimal() or not 0 < int(number) < 65536:
        raise click.BadParameter(f"{text!r} is not [HOST:]PORT, as 8080 or 127.0.0.1:8080")
    try:
        is_loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback and not has_token:
        raise click.ClickException(
            f"{host} can be reached by others: set FLOWENGINE_MCP_TOKEN (openssl rand -hex 32), "
            "which clients send as a bearer token, or serve on 127.0.0.1"
        )
    return host, int(number)
