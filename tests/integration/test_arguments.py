"""A facet may do with its arguments what it likes: they are its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowengine import event_facet, foreach, workflow
from flowengine.authoring import Workflow, event_facet_names
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.worker import TaskWorker
from tests.integration.engines import opened

ROWS = [[1], [2]]
LARGE = [[number] for number in range(5_000)]


@event_facet(name="arguments.order")
def order(n: int) -> Any:
    return {"rows": [[1], [2]]}


@event_facet(name="arguments.rows")
def rows(n: int) -> list[Any]:
    return [[1], [2]]


@event_facet(name="arguments.spoil")
def spoil(found: Any) -> int:
    found["rows"][0].append(99)
    found["more"] = "spoiled"
    return len(found)


@event_facet(name="arguments.spoil_rows")
def spoil_rows(found: list[Any]) -> int:
    found[0].append(99)
    return len(found[0])


@event_facet(name="arguments.see")
def see(found: Any, after: int) -> Any:
    return found


@workflow(name="arguments.untyped")
def untyped(n: int) -> Any:
    found = order(n)
    return see(found, spoil(found))


@workflow(name="arguments.listed")
def listed(n: int) -> Any:
    found = rows(n)
    return see(found, spoil_rows(found))


@workflow(name="arguments.shared")
def shared(numbers: list[int], table: list[Any]) -> list[int]:
    return foreach(numbers, lambda n: spoil_rows(table))


@pytest.mark.parametrize("continuation", [True, False])
@pytest.mark.parametrize(
    ("a_workflow", "inputs", "expected"),
    [
        (untyped, {"n": 1}, {"rows": ROWS}),
        (listed, {"n": 1}, ROWS),
        (shared, {"numbers": list(range(6)), "table": LARGE}, [2] * 6),
    ],
)
def test_changes_of_a_facet_to_its_arguments_stay_in_its_call(
    a_workflow: Workflow[..., Any],
    inputs: dict[str, Any],
    expected: Any,
    continuation: bool,
    database_url: str,
    tmp_path: Path,
) -> None:
    settings = Settings(
        continuation=continuation, quick_seconds=1, batch_max_wait=60, spool_directory=str(tmp_path)
    )
    with opened(database_url, settings=settings) as engine:
        task_worker = TaskWorker(engine, WorkerIdentity("s", "b" * 32, 1), event_facet_names)
        for _ in range(2):  # the second time its facets are known to be quick
            run = engine.start(a_workflow.program(), a_workflow.name, inputs)
            while task_worker.drain("default"):
                pass
            assert run.result(timeout=0) == expected
