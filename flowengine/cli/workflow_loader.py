"""Load the workflow of a target: ``module:name`` or ``path/to/file.py:name``."""

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
        # Import it under its stem, so that qualified names equal those of `python file.py`.
        sys.path.insert(0, str(path.parent.resolve()))
        name = path.stem
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name and name.startswith(missing.name):
            raise click.ClickException(
                f"there is no module {name!r}: use a module that can be imported from "
                f"{here}, or a file like examples/quickstart.py"
            ) from None
        raise


def load_workflow(target: str) -> Workflow[..., Any]:
    """Return the workflow of a target; without a name, the only one of its module."""
    module_name, _, name = target.partition(":")
    module = load_module(module_name)
    workflows = {key: value for key, value in vars(module).items() if isinstance(value, Workflow)}
    if name in workflows:
        return workflows[name]
    if not name and len(workflows) == 1:
        return next(iter(workflows.values()))
    names = ", ".join(f"{module_name}:{key}" for key in workflows) or "none"
    problem = f"no workflow {name!r}" if name else "not exactly one workflow"
    raise click.ClickException(f"{module_name} has {problem}; it has: {names}")


def load_modules(names: Sequence[str]) -> None:
    for name in names:
        load_module(name.partition(":")[0])
