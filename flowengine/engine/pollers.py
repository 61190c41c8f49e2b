"""Wake pollers: processes without a broker, which ask the database for tasks.

A poller of this process is called. A poller of another process is notified by PostgreSQL; on SQLite
it asks at an interval. A process notifies only pollers that it knows: it reads their rows when it
has due tasks, at most once in `KNOWN_SECONDS`. A new poller may be unknown for that time, so it
asks often for twice as long.

A commit notifies pollers itself (`poller_notes`), so that no round trip lies between the rows and
the notification: PostgreSQL delivers it when the rows are visible. Such commits are written to the
disk one after the other, because NOTIFY locks the server until its transaction has ended. So one
commit in some milliseconds does it; after the others the notification is a statement of its own,
which writes nothing.
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
from flowengine.store.failures import is_unavailable
from flowengine.store.protocol import CompletionListener

log = logging.getLogger("flowengine")

KNOWN_SECONDS = 5.0  #: for which the rows of pollers are cached
_COMMIT_PAUSE = 0.01  # seconds between two commits of this process that notify pollers themselves
Wake = Callable[[int], object]  #: called with the number of due tasks, 0: it is not known
#: The same, with the task list before it; without a name: any list may have due tasks.
WakeList = Callable[[str, int], object]


class DueCounts(dict[str, int]):
    """Due tasks by task list, and those of them that a commit has notified pollers of."""

    def __init__(self) -> None:
        self.notified: Counter[str] = Counter()

    def add(self, due: Mapping[str, int], notified: Mapping[str, int] | None = None) -> DueCounts:
        for task_list, number in due.items():
            self[task_list] = self.get(task_list, 0) + number
        if notified:
            self.notified.update(notified)
        return self


class Pollers:
    """The pollers of a database, as one process knows them. Shared by all its threads."""

    def __init__(self, database: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._database, self._clock = database, clock
        self._sender = uuid.uuid4().hex  #: in each notification: its own are ignored
        self._own: dict[str, tuple[str, Wake]] = {}  #: by server: its task list
        self._routers: list[tuple[WakeList, Callable[[], Collection[str]]]] = []
        self._read_at, self._lists = -KNOWN_SECONDS, frozenset[str]()  #: of other processes
        self._in_commit_at = -_COMMIT_PAUSE  #: when a commit notified pollers itself

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
        notified = due.notified if isinstance(due, DueCounts) else Counter[str]()
        try:
            for task_list in due.keys() & self._known_lists():
                if (number := due[task_list] - notified[task_list]) > 0:
                    self._database.notify_pollers(self._note(task_list, number))
        except Exception as problem:  # the rows are there, and a poller asks for them later
            level = logging.DEBUG if is_unavailable(problem) else logging.WARNING
            about = {"action": "pollers_not_notified"}
            log.log(level, "pollers were not notified: %s", problem, extra=about)

    def _note(self, task_list: str, number: int) -> str:
        return json.dumps({"list": task_list, "due": number, "from": self._sender})

    def notes_in_commit(self, due: Mapping[str, int]) -> dict[str, str]:
        """Return the notifications that a commit with these due tasks sends, by task list.

        If the commit is refused, they are not sent, and nothing of it needs them.
        """
        now = self._clock()
        if now - self._in_commit_at < _COMMIT_PAUSE:
            return {}
        found = due.keys() & self._lists
        if found:
            self._in_commit_at = now
        return {task_list: self._note(task_list, due[task_list]) for task_list in found}

    def _known_lists(self) -> frozenset[str]:
        now = self._clock()
        if now - self._read_at >= KNOWN_SECONDS:
            self._read_at = now
            with self._database.autocommit_read() as session:
                found = session.servers.lists_of_pollers()
            own = set(self._own).union(*(ids() for _, ids in self._routers))
            others = [lists for server, lists in found.items() if server not in own]
            self._lists = frozenset().union(*others)
            # Without pollers of other processes commits do not ask.
            self._database.poller_notes = self.notes_in_commit if self._lists else None
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
