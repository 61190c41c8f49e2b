"""Find the workflow that a command names: ``module:name`` or ``path/to/file.py:name``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from flowengine.authoring import Workflow


def load_module(name: str) -> ModuleType:
    """Import a module by name or by file. The working directory is searched first."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if name.endswith(".py"):
        path = Path(name)
        if not path.is_file():
            raise click.ClickException(f"there is no file {name}")
        # Imported under its own stem, so that names are the same as when it is run.
        sys.path.insert(0, str(path.parent.resolve()))
        name = path.stem
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name and name.startswith(missing.name):
            raise click.ClickException(
                f"there is no module {name!r}: name a module that can be imported from "
                f"{here}, or a file like examples/quickstart.py"
            ) from None
        raise


def load_workflow(target: str) -> Workflow[..., Any]:
    """Return the workflow that a target names; without a name, the only one of its module."""
    module_name, _, name = target.partition(":")
    module = load_module(module_name)
    found = {key: value for key, value in vars(module).items() if isinstance(value, Workflow)}
    if name in found:
        return found[name]
    if not name and len(found) == 1:
        return next(iter(found.values()))
    known = ", ".join(f"{module_name}:{key}" for key in found) or "none"
    asked = f"no workflow {name!r}" if name else "several workflows or none"
    raise click.ClickException(f"{module_name} has {asked}; it has: {known}")


def load_modules(names: Sequence[str]) -> None:
    for name in names:
        load_module(name.partition(":")[0])
