"""Wake pollers: processes without a broker, which ask the database for tasks.

A poller of this process is called. A poller of another process is notified by PostgreSQL; on SQLite
it asks at an interval. Nobody is notified of whom the process does not know: it reads the rows of
pollers when it has due tasks, and at most once in some seconds. A poller is new for longer than
that, and as long as it is new it asks often.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from flowengine.dispatch import Group, Notifier
from flowengine.store import Store
from flowengine.store.database import is_unavailable
from flowengine.store.protocol import CompletionListener

log = logging.getLogger("flowengine")

KNOWN_SECONDS = 5.0  #: for which the rows of pollers are cached
Wake = Callable[[int], object]  #: called with the number of due tasks, 0: it is not known
#: The same, with the task list before it; without a name: any list may have due tasks.
WakeList = Callable[[str, int], object]


class Pollers:
    """The pollers of a database, as one process knows them. Shared by all its threads."""

    def __init__(self, database: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._database, self._clock = database, clock
        self._sender = uuid.uuid4().hex  #: in each notification: its own are ignored
        self._own: dict[str, tuple[str, Wake]] = {}  #: by server: its task list
        self._routers: list[tuple[WakeList, Callable[[], Collection[str]]]] = []
        self._read_at, self._lists = -KNOWN_SECONDS, frozenset[str]()  #: of other processes

    @contextmanager
    def subscribed(
        self, server_id: str, task_list: str, wake: Wake
    ) -> Iterator[CompletionListener | None]:
        """Call `wake` for due tasks of the list; yield the listener if the database notifies."""

        def on_due(text: str) -> None:
            note = json.loads(text)
            if note["list"] == task_list and note["from"] != self._sender:
                wake(note["due"])

        listener = self._database.listen_for_tasks(on_due, lambda: wake(0))
        self._own[server_id] = task_list, wake
        try:
            yield listener
        finally:
            del self._own[server_id]
            if listener is not None:
                listener.stop()

    @contextmanager
    def routed(
        self, wake: WakeList, server_ids: Callable[[], Collection[str]]
    ) -> Iterator[CompletionListener | None]:
        """Call `wake` for due tasks of any list: one listener for many servers.

        `server_ids` are the servers for which it passes notifications on.
        """

        def on_due(text: str) -> None:
            note = json.loads(text)
            if note["from"] != self._sender:
                wake(note["list"], note["due"])

        listener = self._database.listen_for_tasks(on_due, lambda: wake("", 0))
        router = wake, server_ids
        self._routers.append(router)
        try:
            yield listener
        finally:
            self._routers.remove(router)
            if listener is not None:
                listener.stop()

    def wake(self, due: Mapping[str, int]) -> None:
        """Wake pollers of these lists; each has about this number of due tasks."""
        for wake_list, _ in self._routers:
            for task_list, number in due.items():
                wake_list(task_list, number)
        for task_list, wake in list(self._own.values()):
            if task_list in due:
                wake(due[task_list])
        if not self._database.has_server:
            return
        try:
            for task_list in due.keys() & self._known_lists():
                note = {"list": task_list, "due": due[task_list], "from": self._sender}
                self._database.notify_pollers(json.dumps(note))
        except Exception as problem:  # the rows are there, and a poller asks for them later
            level = logging.DEBUG if is_unavailable(problem) else logging.WARNING
            log.log(level, "pollers were not notified: %s", problem)

    def _known_lists(self) -> frozenset[str]:
        now = self._clock()
        if now - self._read_at >= KNOWN_SECONDS:
            self._read_at = now
            with self._database.autocommit_read() as session:
                found = session.servers.lists_of_pollers()
            own = set(self._own).union(*(ids() for _, ids in self._routers))
            others = [lists for server, lists in found.items() if server not in own]
            self._lists = frozenset().union(*others)
        return self._lists


class NotifierWithPollers:
    """A notifier that wakes pollers besides."""

    def __init__(self, by_message: Notifier, pollers: Pollers) -> None:
        self._by_message, self._pollers = by_message, pollers

    def pass_on(self, task_list: str, wake: int, hops: int) -> None:
        self._by_message.pass_on(task_list, wake, hops)

    def evaluate(self, run_id: str) -> bool:
        return self._by_message.evaluate(run_id)

    def flush(self) -> None:
        self._by_message.flush()

    def notify(self, due: Mapping[str, int]) -> None:
        self._by_message.notify(due)
        self._pollers.wake(due)

    def repeat(self, due: Mapping[str, int]) -> None:
        self._by_message.repeat(due)
        self._pollers.wake(due)

    def dispatch_groups(self, run_id: str, groups: Iterable[Group]) -> None:
        groups = list(groups)
        self._by_message.dispatch_groups(run_id, groups)
        due: Counter[str] = Counter()
        for group in groups:
            due[group.task_list] += len(group.task_ids)
        self._pollers.wake(due)
