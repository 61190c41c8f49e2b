"""`flowengine workflows` and `flowengine push`: the catalogue of what can be started by name.

Like `commands`, this imports neither a database nor rich: help must be shown at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from flowengine.cli.control_command import JSON

_NAME = click.argument("name", metavar="WORKFLOW")


@click.group(invoke_without_command=True)
@click.pass_context
def workflows(context: click.Context) -> None:
    """Show the workflows that can be started by name."""
    if context.invoked_subcommand is None:
        context.invoke(list_workflows)


@workflows.command("list")
@JSON
def list_workflows(as_json: bool = False) -> None:
    """Show all workflows, and the problems of documents that cannot be published."""
    from flowengine.cli import workflows_view

    workflows_view.show_list(as_json=as_json)


@workflows.command()
@_NAME
@JSON
def show(name: str, as_json: bool) -> None:
    """Show one workflow with its inputs."""
    from flowengine.cli import workflows_view

    workflows_view.show(name, as_json=as_json)


@workflows.command()
@_NAME
def remove(name: str) -> None:
    """Remove a workflow: nothing starts it by name any more. Its runs stay.

    Its schedules are removed, too. Workers that have it in their code publish it again.
    """
    from flowengine.cli import workflows_view

    workflows_view.remove(name)


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--module", "-m", "modules", multiple=True, help="Also import this: facets and workflows."
)
@click.option("--skip-broken", is_flag=True, help="Publish the others if some have problems.")
def push(folder: str, modules: Sequence[str], skip_broken: bool) -> None:
    """Publish the documents of a folder: workers need not see it.

    Checks them as `flowengine check` does. If one has problems, nothing is published.
    """
    from flowengine.cli import workflows_view

    workflows_view.push(folder, modules, skip_broken=skip_broken)


COMMANDS: tuple[click.Command, ...] = (workflows, push)
