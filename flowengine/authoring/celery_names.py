"""The methods of a Celery task that a decorated function lacks, each with its replacement.

Somebody who knows Celery writes ``album.delay(...)``. The error says what to write instead. It
is an AttributeError, so that ``hasattr`` and Celery take a facet for no task; type checkers and
editors do not see the names.
"""

from __future__ import annotations

from typing import Any

from flowengine.authoring.definitions import Definition
from flowengine.errors import NotACeleryTask
from flowengine.program.nodes import FacetKind

_STEP = "call it like a function in a @workflow, which makes it a step, and start the workflow"
_ITEMS = "in a workflow write foreach(items, {name})"

_OF_WORKFLOWS = {
    "delay": "write {name}.start(...), which starts a durable run and returns its handle",
    "apply_async": "write {name}.start(...), or with options {name}.options(key=..., "
    "priority=...).start(...); queues belong to the event facets: task_list=; a countdown or eta "
    "is a sleep(...) or sleep_until(...) before its first step",
    "apply": "write {name}.start(...).result(), which waits for a durable run; {name}(...) runs "
    "the function in place, as plain Python",
    **dict.fromkeys(
        ("s", "si", "signature", "subtask"),
        "write {name}.start(...); inside a workflow {name}(...) makes it a step; a message of "
        'another client or of a canvas starts it by app.signature("flowengine.execute", '
        'args=("{qualified}", {{...}}), queue="flowengine")',
    ),
    **dict.fromkeys(
        ("map", "starmap", "chunks"),
        "write {name}.start_many([{{...}}, ...]), which starts a run for each map of arguments; "
        + _ITEMS,
    ),
    "retry": "a failed step is retried by the policy of its event facet: "
    "@event_facet(retry=Retry(attempts=3))",
    "replace": "use when(...), or a workflow that calls itself",
    "AsyncResult": "default_engine().run(run_id) returns the handle of a run",
}
_OF_EVENTS = {
    **dict.fromkeys(
        ("delay", "apply"),
        _STEP + '; outside any run, on Celery, app.send_task("{qualified}", args=[...]) calls it',
    ),
    "apply_async": f"{_STEP}; a countdown is {{name}}.after(sleep(seconds))(...), an eta "
    "{name}.after(sleep_until(moment))(...); outside any run, on Celery, "
    'app.send_task("{qualified}", args=[...]) calls it',
    **dict.fromkeys(("s", "si", "signature", "subtask"), _STEP),
    **dict.fromkeys(("map", "starmap", "chunks"), _ITEMS),
    "retry": "raise the error: the policy of the facet decides about the next try, "
    "@event_facet(retry=Retry(attempts=3))",
    "replace": "return other.call(...), the call of a workflow",
    "AsyncResult": "the result of a step is a value of its run: run.steps()",
}
_CURES = {
    FacetKind.WORKFLOW: _OF_WORKFLOWS,
    FacetKind.EVENT: _OF_EVENTS,
    FacetKind.FACET: {**dict.fromkeys(_OF_EVENTS, _STEP), "map": _ITEMS, "starmap": _ITEMS},
}


class CeleryName:
    """An attribute that raises NotACeleryTask. Not a method: ``hasattr`` must be False."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, decorated: Any, owner: type | None = None) -> Any:
        if decorated is None:
            return self
        definition: Definition = decorated.definition
        cure = _CURES[definition.kind][self._name]
        shown = cure.format(name=definition.short_name, qualified=definition.name)
        raise NotACeleryTask(definition.title, self._name, shown)


def refuse_celery_names(decorated: type) -> None:
    """Give a class the names; one that it has itself stays."""
    for name in _OF_WORKFLOWS:
        if not hasattr(decorated, name):
            refused = CeleryName()
            refused.__set_name__(decorated, name)
            setattr(decorated, name, refused)
