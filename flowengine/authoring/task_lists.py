"""The task list of an event facet whose decorator names none.

On Celery the routes of the app choose it, as they choose the queue of a task. This layer knows no
Celery: the assembly layer fills the slot with a source that asks the app.
"""

from __future__ import annotations

from collections.abc import Callable

#: Returns the task list of a facet by its name; None: the default list.
TaskListSource = Callable[[str], str | None]

_source: TaskListSource | None = None


def set_task_list_source(source: TaskListSource | None) -> TaskListSource | None:
    """Fill the slot and return its previous source; it is asked when a facet is first needed."""
    global _source
    previous, _source = _source, source
    return previous


def routed_list(name: str) -> str | None:
    return None if _source is None else _source(name)
