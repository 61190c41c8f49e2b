"""The queues of a Celery app: the task lists of its facets, and the queues a worker consumes."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.app.defaults import DEFAULTS

from flowengine.authoring import event_facet_named, event_facet_names


class WorkerQueues:
    """Reads `task_routes`, `task_queues` and `task_default_queue` of an app."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self.excluded: frozenset[str] = frozenset()  #: by -X

    def task_list(self, facet: str) -> str | None:
        """Return the queue that the app's routes choose for a facet; None: they choose none.

        Celery's own default queue is not taken for a choice: facets without a list have the list
        "default" then, in this app and in an embedded process.
        """
        router = self._app.amqp.router
        route = router.lookup_route(facet, (), {}, {}, None) if router.routes else None
        if route:
            found = router.expand_destination(route if isinstance(route, str) else dict(route))
            if (queue := found.get("queue")) is not None:
                return str(queue.name)
        default = str(self._app.conf.task_default_queue)
        return None if default == DEFAULTS["task_default_queue"] else default

    def choose(self, options: dict[str, Any], control_queue: str) -> None:
        """Let a worker consume the task lists of its facets, unless -Q names others."""
        excluded = options.get("exclude_queues") or ()
        excluded = excluded.split(",") if isinstance(excluded, str) else excluded
        self.excluded = frozenset(excluded)
        if options.get("queues"):
            return
        for name in sorted({*self.task_lists(), control_queue}):
            self.add(name)

    def task_lists(self) -> set[str]:
        """Return the lists of the facets of this process."""
        facets = [event_facet_named(name) for name in event_facet_names()]
        definitions = [facet.definition for facet in facets if facet is not None]
        lists = {definition.options.task_list for definition in definitions}
        # Runs that were started before a route existed have their tasks on the list of that time.
        return lists | {definition.given.task_list for definition in definitions}

    def add(self, name: str) -> None:
        queues = self._app.amqp.queues
        # A queue of `task_queues` keeps its arguments.
        queues.select_add(queues.get(name, name))

    def leave(self, name: str) -> None:
        self._app.amqp.queues.deselect(name)

    def consumed(self) -> list[str]:
        """The queues this worker consumes; remote control may add and cancel some."""
        return sorted(self._app.amqp.queues.consume_from)

    def consumes(self, task_list: str) -> bool:
        return self.name_of(task_list) in self._app.amqp.queues.consume_from

    def name_of(self, task_list: str) -> str:
        queue = self._app.amqp.queues.aliases.get(task_list)
        return task_list if queue is None else str(queue.name)
