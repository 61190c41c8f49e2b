"""The schedules of a workflow, as its decorator is given them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowengine.errors import AuthoringError
from flowengine.scheduling import Schedule


def checked_schedules(title: str, given: Any) -> tuple[Schedule, ...]:
    """Return the option as a tuple; raise AuthoringError."""
    if given is None:
        return ()
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    schedules = tuple(given) if is_list else (given,)
    if not all(isinstance(each, Schedule) for each in schedules):
        raise AuthoringError(
            f"{title}: schedule={given!r} is not a Schedule; write "
            'schedule=Schedule("0 6 * * *", timezone="Europe/Berlin")'
        )
    names = [each.name for each in schedules]
    if len(set(names)) < len(names):
        raise AuthoringError(
            f"{title} has several schedules of the same name; name them: "
            'Schedule("0 6 * * *", name="mornings")'
        )
    return schedules
