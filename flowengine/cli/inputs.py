"""Parse inputs given as ``name=value``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from flowengine.program.nodes import Field


def read_inputs(params: Iterable[Field], given: Sequence[str]) -> dict[str, Any]:
    """Return the inputs. A value is JSON, plain text for a text parameter, or @file."""
    fields = {field.name: field for field in params}
    inputs: dict[str, Any] = {}
    for pair in given:
        name, equals, text = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"{pair!r} is not name=value", param_hint="--input")
        if name in inputs:
            raise click.BadParameter(f"{name!r} is given twice", param_hint="--input")
        inputs[name] = _value(text, fields.get(name))
    return inputs


def _value(text: str, field: Field | None) -> Any:
    if text.startswith("@"):
        path = Path(text[1:])
        if not path.is_file():
            raise click.BadParameter(f"there is no file {path}", param_hint="--input")
        text = path.read_text()
    if field is not None and field.type == "String":
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
