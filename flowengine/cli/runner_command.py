"""`flowengine runner`: a runner service as a process.

Like `commands`, this imports neither a database nor the SDK before the command runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from flowengine.cli import configuration

if TYPE_CHECKING:
    from flowengine.program import Program
    from flowengine.sdk import RunnerService, ToolRegistry

F = TypeVar("F", bound=Callable[..., Any])

_FILES = (".afl", ".ffl", ".json")
#: The fields of `RunnerConfig` as options, with their defaults and what they mean.
OPTIONS: tuple[tuple[str, str | int, str], ...] = (
    ("task_list", "default", "The list that it claims tasks from."),
    ("server_group", "default", "The group of servers, in the registry."),
    ("service_name", "afl-runner", "The kind of server, in the registry."),
    ("server_name", "", "Its name for people; by default the name of the host."),
    ("max_concurrent", 5, "Handlers at once."),
    ("poll_interval_ms", 2000, "The longest pause between two polls."),
    ("heartbeat_interval_ms", 10000, "Between two signs of life."),
    ("lock_duration_ms", 60000, "Of the lock on a work item, until it is extended."),
    ("lock_extend_interval_ms", 20000, "Between two extensions of the locks."),
    ("shutdown_timeout_ms", 30000, "That running handlers get after a signal."),
    ("http_port", 8080, "First port that is tried for HTTP on 127.0.0.1; 0: any free one."),
    ("http_max_port_attempts", 20, "Ports that are tried; 0: no HTTP server."),
)


def _config_options(function: F) -> F:
    for name, default, text in reversed(OPTIONS):
        flag = f"--{name.replace('_', '-')}"
        shown = default != ""
        function = click.option(
            flag, name, default=default, type=type(default), show_default=shown, help=text
        )(function)
    return function


@click.command("runner")
@click.argument("targets", nargs=-1, metavar="[TARGET...]")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME",
    help="Serve only facets of this qualified name or glob (billing.*); may be repeated.",
)
@_config_options
def runner(targets: Sequence[str], topics: Sequence[str], **config: Any) -> None:
    """Run handlers for the tasks of a list until a signal; needs the database and no broker.

    TARGET is a module or a Python file with event facets, or with a ToolRegistry
    (MODULE:NAME if it has several); or a file of AFL text or program JSON, whose workflows can
    then be started by name. /health, /status and /metrics are served on 127.0.0.1.
    """
    from flowengine.sdk import RunnerConfig

    checked = RunnerConfig(topics=list(topics), **config)
    registry, programs = _load(targets)
    service = _service(checked, registry)
    for program in programs:
        service.add_program(program)

    def ready() -> None:
        port = service.http_port
        status = f", http://127.0.0.1:{port}/status" if port else ""
        click.echo(f"runner {service.server_id[:8]} works on list {checked.task_list!r}{status}")

    with service:
        service.start(ready)
    click.echo(f"runner {service.server_id[:8]} has stopped")


def _service(config: Any, registry: ToolRegistry) -> RunnerService:
    from flowengine.sdk import RunnerService

    settings = configuration.settings()
    configuration.require_database()
    installed = getattr(configuration.celery_app(), "flowengine", None)
    engine = getattr(installed, "engine", None)
    if engine is not None:  # it wakes the workers of the app besides
        return RunnerService(engine, config, registry)
    return RunnerService.connect("", config, registry, settings=settings)


def _load(targets: Sequence[str]) -> tuple[ToolRegistry, list[Program]]:
    """Import the targets; return the handlers and the programs they have."""
    from flowengine.authoring import event_facet_named, event_facet_names
    from flowengine.cli.targets import load_module
    from flowengine.program.standard import is_built_in
    from flowengine.sdk import ToolRegistry

    configuration.celery_app()  # modules of an app may need its settings
    found: dict[int, tuple[str, ToolRegistry]] = {}
    files: list[str] = []
    for target in targets:
        if Path(target).suffix in _FILES:
            files.append(target)
            continue
        module_name, _, name = target.partition(":")
        module = load_module(module_name)
        named = {n: v for n, v in vars(module).items() if isinstance(v, ToolRegistry)}
        if name and name not in named:
            known = ", ".join(f"{module_name}:{n}" for n in named) or "none"
            raise click.ClickException(
                f"{module_name} has no ToolRegistry {name!r}; it has: {known}"
            )
        chosen = {name: named[name]} if name else named
        found |= {id(each): (f"{module_name}:{n}", each) for n, each in chosen.items()}
    if len(found) > 1:
        names = ", ".join(name for name, _ in found.values())
        raise click.ClickException(
            f"a runner has one ToolRegistry, and these were found: {names}; name one of them"
        )
    registry = next((each for _, each in found.values()), None) or ToolRegistry()
    if "celery" in sys.modules:  # otherwise no facet is a Celery task
        from flowengine.tasks.task_steps import offer_task_steps

        offer_task_steps()
    for facet_name in event_facet_names():
        facet = event_facet_named(facet_name)
        if facet is not None and facet.name == facet_name and not is_built_in(facet_name):
            _add_facet(registry, facet)
    return registry, _programs(files)


def _add_facet(registry: ToolRegistry, facet: Any) -> None:
    """Register the facet of a module, unless a handler of the registry has one of its names."""
    taken = set(registry.registered_names())
    if taken.isdisjoint((facet.name, *facet.aliases)):
        registry.register(facet)


def _programs(files: Sequence[str]) -> list[Program]:
    from flowengine.assembly import load_program

    for file in files:
        if not Path(file).is_file():
            raise click.ClickException(f"there is no file {file}")
    settings = configuration.settings()
    return [load_program(file, settings=settings) for file in files]
