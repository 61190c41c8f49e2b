"""How every workflow of the chaos run ends, as plain Python; however often it is retried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.acceptance.chaos import novelties, workflows
from tests.acceptance.chaos.workflows import WIDTH


@dataclass(frozen=True, slots=True)
class End:
    """The end of a run: its state, and its result or the class of its error."""

    state: str
    value: object


def completed(value: object) -> End:
    return End("COMPLETED", value)


def chain(n: int) -> End:
    for _ in range(6):
        n = (n + 1) * 2
    return completed(n)


def fan_out(n: int) -> End:
    return completed(sum(i * i for i in range(WIDTH)))


def retried(n: int) -> End:
    return completed(n + 101)


def heartbeats(n: int) -> End:
    return completed((n - 1) * 2)


def reservation(n: int) -> End:
    if n % 3 == 0:
        return completed(n * 2)
    return End("FAILED", "Refused") if n % 7 == 0 else completed(n)


def family(n: int) -> End:
    return completed(n * n + 30)


def family_with_a_failure(n: int) -> End:
    child = reservation(n)
    return completed(child.value + 1) if isinstance(child.value, int) else child


def novelty(n: int) -> End:
    return completed(n // 2 + 30)


#: Each workflow beside its model.
WORKFLOWS: list[tuple[Any, Callable[[int], End]]] = [
    (workflows.chain, chain),
    (workflows.fan_out, fan_out),
    (workflows.retried, retried),
    (workflows.heartbeats, heartbeats),
    (workflows.reservation, reservation),
    (workflows.family, family),
    (workflows.family_with_a_failure, family_with_a_failure),
    (novelties.novelty, novelty),
]
