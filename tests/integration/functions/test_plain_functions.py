"""Plain functions, with ``run=True``, go on in any thread: their greenlets are not kept."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from flowengine import sleep, workflow
from tests.integration.functions.bodies import double
from tests.integration.functions.workers import IN_PLACE, WITH_TASKS, worked


@workflow(run=True, name="plain_functions.bill")
def bill(n: int) -> list[int]:
    found = []
    try:
        found.append(double(n))
        sleep(60)
        found.append(double(n + 1))
        sleep(60)
    finally:
        found.append(double(n + 2))
    return found


def in_a_thread(act: Callable[[], None]) -> None:
    problems: list[BaseException] = []

    def caught() -> None:
        try:
            act()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=caught)
    thread.start()
    thread.join()
    assert problems == []


@pytest.mark.parametrize("settings", [IN_PLACE, WITH_TASKS], ids=["in_place", "with_tasks"])
def test_each_activation_of_a_plain_function_may_run_in_another_thread(
    settings: dict[str, float], tmp_path: Path
) -> None:
    with worked(f"sqlite:///{tmp_path}/flow.db", tmp_path, **settings) as worker:
        run = worker.start(bill, 1)
        in_a_thread(worker.settle)
        in_a_thread(lambda: worker.pass_time(61))
        in_a_thread(lambda: worker.pass_time(61))
        worker.settle()
        assert run.result(timeout=0) == [2, 4, 6]
