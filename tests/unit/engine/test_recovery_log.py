"""A row that recovery cannot repair is named in the log, and the others are repaired."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from flowengine.engine.engine import Engine
from flowengine.engine.recovery import release_unstarted
from flowengine.store.recovery_queries import HeldTask


def held(task_id: str, step_path: str) -> HeldTask:
    return HeldTask(task_id, 1, "a1b2", "shop.pay", "default", step_path, None, "boot", 7, False)


def test_a_task_that_cannot_be_released_is_named_by_its_step_and_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    released = []

    def release_held(keys: Any) -> bool:
        if keys == [("t1", 1)]:
            raise ValueError("broken")
        released.extend(keys)
        return True

    engine = cast(Engine, SimpleNamespace(release_held=release_held))
    release_unstarted(engine, [held("t1", "order.pay"), held("t2", "order.ship")])
    assert released == [("t2", 1)]
    (line,) = caplog.records
    assert line.getMessage() == (
        "recovery of order.pay of run a1b2 failed; the next pass tries again"
    )
    assert line.__dict__["action"] == "recovery_item_failed"
