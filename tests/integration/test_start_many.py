"""Many runs are started together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowengine import event_facet, workflow
from flowengine.errors import AuthoringError, InvalidInputs
from flowengine.testing import Flow

pytestmark = pytest.mark.each_database


@event_facet
def doubled(n: int) -> int:
    return n * 2


@workflow
def doubling(n: int) -> int:
    return doubled(n)


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url) as flow:
        yield flow


def test_many_runs_are_started_together(flow: Flow) -> None:
    runs = doubling.options(priority=3).start_many({"n": n} for n in range(120))
    assert len({run.id for run in runs}) == 120
    flow.settle()
    assert [run.result(timeout=0) for run in runs] == [2 * n for n in range(120)]
    assert {flow.engine.get(run.id).priority for run in runs} == {3}


def test_many_starts_with_an_invalid_one_make_no_run(flow: Flow) -> None:
    with pytest.raises(InvalidInputs, match="'n'"):
        doubling.start_many([{"n": 1}, {"n": "many"}])
    assert flow.engine.list() == []


def test_many_starts_take_no_key(flow: Flow) -> None:
    with pytest.raises(AuthoringError, match="takes neither a key"):
        doubling.options(key="once").start_many([{"n": 1}])
