"""A long foreach: the caller expands its first portion, a worker the rest."""

from __future__ import annotations

from flowengine import event_facet, foreach, workflow
from flowengine.dispatch import NullNotifier
from flowengine.testing import Flow
from tests.integration.engines import replace_notifier

LENGTH = 5_000


@event_facet
def increment(n: int) -> int:
    return n + 1


@workflow
def increments(numbers: list[int]) -> list[int]:
    return foreach(numbers, lambda n: increment(n))


class WorkersEvaluate(NullNotifier):
    """Records the runs that workers are to evaluate."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def evaluate(self, run_id: str) -> bool:
        self.runs.append(run_id)
        return True


def test_start_expands_one_portion_of_a_long_foreach_in_the_caller(database_url: str) -> None:
    with Flow(store_url=database_url) as flow:
        notifier = WorkersEvaluate()
        replace_notifier(flow.engine, notifier)
        run = flow.start(increments, list(range(LENGTH)))
        assert len(flow.engine.tasks(run.id)) <= 1_100
        assert notifier.runs == [run.id]
        flow.engine.advance(run.id)
        assert len(flow.engine.tasks(run.id)) == LENGTH
        assert notifier.runs == [run.id], "a worker that advances the run expands all of it"


def test_without_workers_the_caller_expands_all_of_it(database_url: str) -> None:
    with Flow(store_url=database_url) as flow:
        run = flow.start(increments, list(range(LENGTH)))
        assert len(flow.engine.tasks(run.id)) == LENGTH
