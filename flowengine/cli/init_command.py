"""`flowengine init`: a small project that runs at once."""

from __future__ import annotations

from pathlib import Path

import click

_FACETS = '''\
"""Event facets: each call of one is a step, which is recorded and tried again."""

from flowengine import event_facet


@event_facet
def greet(name: str) -> str:
    return f"Hello, {name}!"


@event_facet
def count(text: str) -> int:
    return len(text.split())
'''
_WORKFLOW = """\
# The workflow `hello`: the name of a workflow is its path in this folder, with dots.
# To start it every morning, add: schedule: {cron: "0 6 * * *", timezone: Europe/Berlin}
inputs: {name: {type: text, default: world}}
tasks:
  greet: {call: facets.greet, with: {name: "${inputs.name}"}, retry: {attempts: 3}}
  count: {call: facets.count, with: {text: "${tasks.greet.result}"}}
result: "${tasks.greet.result} (${tasks.count.result} words)"
"""
_SETTINGS = """\
# Settings for the commands of flowengine in this folder; the environment goes before them:
# FLOWENGINE_DATABASE_URL=postgresql+psycopg://… flowengine work
workflows = "workflows"
imports = "facets"
concurrency = 8
"""
_IGNORED = """\
flowengine.db*
flowengine-spool/
__pycache__/
"""
FILES = {
    "facets.py": _FACETS,
    "workflows/hello.yml": _WORKFLOW,
    "flowengine.toml": _SETTINGS,
    ".gitignore": _IGNORED,
}


def init(folder: str) -> None:
    """Write the files of a project into a folder; none that is there is changed."""
    root = Path(folder)
    if root.exists() and not root.is_dir():
        raise click.ClickException(f"{folder} is a file; name a folder, or none for this one")
    for name, content in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("x") as file:  # also if it appears just now
                file.write(content)
        except FileExistsError:
            click.echo(f"kept     {path}")
        else:
            click.echo(f"created  {path}")
    inside = "" if root.resolve() == Path.cwd().resolve() else f"cd {folder} && "
    click.echo(f"run it:  {inside}flowengine run workflows/hello.yml -i name=Ada")
    click.echo(f"serve:   {inside}flowengine check && flowengine work")
