"""Decide between another try and failure, from the policy, the counts and the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from flowengine.program.nodes import EventOptions


@dataclass(frozen=True, slots=True)
class TryAgain:
    try_number: int
    losses: int
    due: int  #: milliseconds since the epoch


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str  #: added to the error message; may be empty


Decision: TypeAlias = TryAgain | GiveUp


def after_failure(
    options: EventOptions, try_number: int, losses: int, now: int
) -> TryAgain | GiveUp:
    """Decide after a try that ended with an error."""
    policy = options.retry
    if try_number >= policy.attempts:
        return GiveUp(
            f"failed {try_number} of {policy.attempts} tries" if policy.attempts > 1 else ""
        )
    try:
        wait = min(policy.first_wait * policy.factor ** (try_number - 1), policy.max_wait)
    except OverflowError:  # after about a thousand tries
        wait = policy.max_wait
    return TryAgain(try_number + 1, losses, now + round(wait * 1000))


def after_loss(options: EventOptions, try_number: int, losses: int, now: int) -> Decision:
    """Decide after a try whose worker died: losses have a limit of their own."""
    if options.on_loss == "fail":
        return GiveUp("it may have done its work, and must not run twice")
    if losses + 1 > options.max_losses:
        return GiveUp(
            f"its worker died {losses + 1} times, {options.max_losses} losses are allowed"
        )
    return TryAgain(try_number, losses + 1, now)
