"""Agents under flowengine.testing.Flow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowengine import TurnFailed
from flowengine.testing import Flow
from tests.integration.agents_seen.clerks import asker, clerk, greet, greeter, hasty, patient


@pytest.fixture
def flow() -> Iterator[Flow]:
    with Flow() as flow:
        yield flow


def test_a_turn_runs_to_its_end_inline(flow: Flow) -> None:
    assert flow.run_turn(greeter.send("ada")) == "good day"


def test_a_workflow_that_asks_an_agent_runs_to_its_end_inline(flow: Flow) -> None:
    assert flow.run(greet, "ada") == "good day"


def test_the_clock_is_moved_over_the_retries_of_a_tool(flow: Flow) -> None:
    began = flow.clock.now
    assert flow.run_turn(patient.send()) == "at last"
    assert flow.clock.now - began >= 200_000


def test_the_clock_is_moved_over_the_deadline_of_a_tool(flow: Flow) -> None:
    began = flow.clock.now
    assert "no result arrived in time" in flow.run_turn(asker.send())
    assert flow.clock.now - began == 3_600_000


def test_the_clock_is_moved_over_the_budget_of_seconds(flow: Flow) -> None:
    began = flow.clock.now
    with pytest.raises(TurnFailed) as ended:
        flow.run_turn(hasty.send())
    assert (ended.value.status, ended.value.code) == ("timeout", "max_seconds_reached")
    assert flow.clock.now - began == 60_000


def test_a_turn_that_waits_for_a_person_does_not_wait_for_the_clock(flow: Flow) -> None:
    turn = clerk.send("The kettle leaks")
    with pytest.raises(TimeoutError):
        flow.run_turn(turn)
    (asked,) = [call for call in turn.calls() if call.approval == "asked"]
    turn.approve(asked.id, by="eva")
    assert flow.run_turn(turn).reason == "refunded 4200"
