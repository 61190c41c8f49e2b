"""Dispatch: telling workers that there is something to do.

A message is a bell, not a letter: it names a task list, and whoever hears it looks into
the database for what is due there. Losing a bell costs time, a bell too many costs nothing.
"""

from flowengine.dispatch.notifier import (
    CeleryNotifier,
    Group,
    LocalNotifier,
    Notifier,
    NullNotifier,
)

__all__ = ["CeleryNotifier", "Group", "LocalNotifier", "Notifier", "NullNotifier"]
