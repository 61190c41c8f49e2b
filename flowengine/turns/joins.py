"""Joins: several turns that one step waits for, and the status of all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowengine.turns.states import TaskStatus

MAX_TASKS = 8  #: of one join, unless its author says otherwise
DEADLINE_SECONDS = 900.0
#: A parent waits this much longer than its join: so the join ends first, with the results it has.
GRACE_SECONDS = 60.0
DEADLINE = "join_deadline"  #: the code of turns that a join ended because its time was over
FAILED_FAST = "join_failed"  #: the code of turns that a join ended because another one failed


class Strategy:
    """The agent that gets a task of a join."""

    NEW = "new"  #: an agent of the task's own
    REUSE = "reuse"  #: an existing agent: the task is its next turn, with its memory
    CLONE = "clone"  #: a new agent that begins with the memory of an existing one


@dataclass(frozen=True, slots=True)
class JoinEnd:
    """How a join ends the turns that go on."""

    code: str
    reason: str
    status: str


#: By the end of the name of the facet that does it.
ENDS = {
    "__expire": JoinEnd(DEADLINE, "the time of its join is over", TaskStatus.TIMEOUT),
    "__cancel": JoinEnd(FAILED_FAST, "another task of its join has failed", TaskStatus.CANCELED),
}


@dataclass(frozen=True, slots=True)
class Ended:
    """How the turn of one task has ended."""

    status: str
    code: str = ""


def join_status(ended: Sequence[Ended], *, fail_fast: bool) -> str:
    """Return the status of a join whose turns have all ended: the first rule that applies."""
    statuses = {each.status for each in ended}
    rules = (
        (any(each.code == DEADLINE for each in ended), TaskStatus.TIMEOUT),
        (statuses <= {TaskStatus.SUCCESS}, TaskStatus.SUCCESS),
        (fail_fast, TaskStatus.FAILED),
        (TaskStatus.SUCCESS in statuses, TaskStatus.PARTIAL),
        (TaskStatus.FAILED in statuses, TaskStatus.FAILED),
        (TaskStatus.TIMEOUT in statuses, TaskStatus.TIMEOUT),
    )
    return next((status for applies, status in rules if applies), TaskStatus.PARTIAL)
