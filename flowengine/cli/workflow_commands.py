"""`flowengine workflows` and `flowengine push`: the catalogue of what can be started by name.

Like `commands`, this imports neither a database nor rich: help must be shown at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from flowengine.cli.control_command import ACTOR, JSON, REASON, named_actor

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


@workflows.command()
@_NAME
@REASON
@ACTOR
def close(name: str, reason: str, actor: str | None) -> None:
    """Refuse new starts of a workflow, with the reason, until it is opened.

    Open runs go on, with the child runs that they start, and are retried. Ticks of its schedules
    are skipped, and say so.
    """
    from flowengine.cli import workflows_view

    workflows_view.close(name, named_actor(actor), reason)


@workflows.command("open")
@_NAME
@REASON
@ACTOR
def open_workflow(name: str, reason: str, actor: str | None) -> None:
    """Take new starts of a closed workflow again."""
    from flowengine.cli import workflows_view

    workflows_view.open_again(name, named_actor(actor), reason)


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
