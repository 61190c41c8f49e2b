"""`flowengine.toml`: the settings of a project, for the commands that are called in its folder.

They come after the environment and before the defaults. A file of a project is shared, so keys and
tokens are refused in it.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from flowengine.errors import InvalidSetting
from flowengine.printable import masked_url
from flowengine.settings import Settings

NAME = "flowengine.toml"
_MAX_BYTES = 64 * 1024


def settings() -> Settings:
    """Return the settings of the environment, then of the file; an error names its source."""
    in_file = configured()
    try:
        return Settings.from_environment(configured=in_file)
    except InvalidSetting as problem:
        name = problem.variable.removeprefix("FLOWENGINE_").lower()
        if f"flowengine_{name}" not in in_file or os.environ.get(problem.variable):
            raise
        what = f"{name} = {masked_url(problem.value)} is not {problem.expected}"
        raise click.ClickException(f"{NAME}: {what}") from None


def configured() -> dict[str, Any]:
    """Return the settings of the file in this folder, as those of a Celery app are named."""
    path = Path(NAME)
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise click.ClickException(f"{NAME} has more than {_MAX_BYTES // 1024} KiB")
    try:
        found = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise click.ClickException(f"{NAME} cannot be read: {problem}") from None
    known = {setting.name: setting for setting in fields(Settings)}
    for name, value in found.items():
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise click.ClickException(f"{NAME}: there is no setting {name!r}{hint}")
        if not known[name].repr:
            variable = f"FLOWENGINE_{name.upper()}"
            raise click.ClickException(
                f"{NAME}: {name} is secret, and a file of a project is shared: set {variable}"
            )
        if not isinstance(value, str | int | float):
            raise click.ClickException(f"{NAME}: {name} must be a text, a number, or true or false")
    return {f"flowengine_{name}": value for name, value in found.items()}
