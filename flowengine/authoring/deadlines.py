"""The deadline of a step, as the author gives it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from flowengine.authoring.locations import user_location
from flowengine.errors import AuthoringError
from flowengine.program.deadlines import deadline_mixin, deadline_of
from flowengine.program.nodes import Mixin


def checked_deadline(duration: Any) -> Mixin:
    """Return the mixin of a deadline in seconds or as a timedelta; raise if it is none."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise AuthoringError(
            f"{user_location()}: a deadline is a number of seconds or a timedelta, known when the "
            f"workflow is written, not {duration!r}"
        )
    mixin = deadline_mixin(float(seconds))
    if isinstance(problem := deadline_of(mixin), str):
        raise AuthoringError(f"{user_location()}: {problem}")
    return mixin


def deadline_mixins(duration: timedelta | float | None) -> tuple[Mixin, ...]:
    return () if duration is None else (checked_deadline(duration),)
