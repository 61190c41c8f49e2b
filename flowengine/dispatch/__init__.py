"""Dispatch: wake workers when there is work.

A message carries no state: it names a task list, and its consumer looks into the database for
due tasks. A lost message costs time, a surplus one costs a query.
"""

from flowengine.dispatch.local_notifier import NO_PROMISE, ClaimPromise, LocalNotifier, ProcessLoad
from flowengine.dispatch.notifier import CeleryNotifier, Group, Notifier, NullNotifier

__all__ = [
    "NO_PROMISE",
    "CeleryNotifier",
    "ClaimPromise",
    "Group",
    "LocalNotifier",
    "Notifier",
    "NullNotifier",
    "ProcessLoad",
]
