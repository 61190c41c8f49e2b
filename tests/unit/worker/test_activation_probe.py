"""The code of a durable function that blocks is named with its line."""

from __future__ import annotations

import pytest

from flowengine.evaluator import TaskDefinition
from flowengine.worker.activation_probe import BLOCKED_SECONDS, ActivationProbe


def test_a_function_whose_code_blocks_is_named_once_with_its_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = TaskDefinition("t", "shop.bill@1", "", "run", "", "s", step_path="bill.bill")
    clock = iter([0.0, BLOCKED_SECONDS - 1, BLOCKED_SECONDS, BLOCKED_SECONDS + 1])
    probe = ActivationProbe(lambda: next(clock))
    with probe.over(task):
        probe.check()
        assert not caplog.records
        probe.check()
        probe.check()
    probe.check()
    (line,) = caplog.records
    assert "shop.bill@1 (bill.bill) has run for 5.0 s without a wait" in line.getMessage()
    assert f"{__file__}:" in line.getMessage()
    assert "await step(…)" in line.getMessage()
