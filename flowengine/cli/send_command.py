"""`flowengine send`: answer a step that waits."""

from __future__ import annotations

import getpass
import json
import sys
from pathlib import Path
from typing import Any

import click

from flowengine.cli.database import acting_engine
from flowengine.cli.terminal import console, line


def send(run_id: str, name: str, text: str | None, actor: str | None) -> None:
    value = json_value(text)
    with acting_engine() as engine:
        info = engine.find(run_id)
        by = actor if actor is not None else _user()
        is_taken = engine.send(info.id, name, value, actor=by)
        after = engine.get(info.id)
    done = "is answered" if is_taken else "is kept until a step waits for it"
    console.print(line(f"{name} {done}; run {info.id[:8]} is {after.state}"))


def json_value(text: str | None) -> Any:
    """Return the answer: JSON, @file or - for the standard input; without one it is null."""
    if text is None:
        return None
    if text == "-":
        text = sys.stdin.read()
    elif text.startswith("@"):
        try:
            text = Path(text[1:]).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise click.ClickException(f"{text[1:]} cannot be read: {problem}") from None
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as problem:
        raise click.BadParameter(
            f"it is not JSON ({problem}); a text needs quotation marks: '\"yes\"'",
            param_hint="VALUE",
        ) from None


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        return ""
