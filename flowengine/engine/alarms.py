"""Which servers serve a task, and the alarm of a run whose task nobody serves. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from flowengine.store.servers import ServerDefinition

#: How the alarm of an unserved task begins.
UNSERVED = "waits for a worker of task list"


def unserved_alarms(
    alive: Sequence[ServerDefinition], pending: Collection[tuple[str, str, str]]
) -> dict[str, str]:
    """Return the alarms by run id, of pending tasks given by run id, facet and task list."""
    found = ((run_id, unserved_alarm(alive, *of_task)) for run_id, *of_task in sorted(pending))
    return {run_id: alarm for run_id, alarm in found if alarm is not None}


def unserved_alarm(alive: Sequence[ServerDefinition], facet: str, task_list: str) -> str | None:
    names = {facet, facet.rpartition(".")[2]}
    capable = [server for server in alive if names & set(server.handlers)]
    if not capable:
        return (
            f"{UNSERVED} {task_list!r} that has the code of event facet {facet!r}: import "
            "the module that decorates it, or start a worker that does"
        )
    if not consumed_lists(capable, [task_list]):
        return (
            f"{UNSERVED} {task_list!r}: {capable[0].server_name} has the code of event facet "
            f"{facet!r} but consumes {', '.join(capable[0].topics)}; add {task_list!r} to a "
            "worker's -Q"
        )
    return None


def consumed_lists(alive: Sequence[ServerDefinition], task_lists: Iterable[str]) -> list[str]:
    """Return the task lists that a server consumes. A server without topics consumes all."""
    return [
        task_list
        for task_list in task_lists
        if any(not server.topics or task_list in server.topics for server in alive)
    ]
