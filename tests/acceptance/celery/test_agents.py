"""Turns of agents on Celery workers that are killed or suspended, and lose or double messages."""

from __future__ import annotations

from typing import Any

import pytest

from flowengine.agents import TurnHandle, agents_of
from flowengine.agents.enqueue import NewTurn
from tests.acceptance.celery import office
from tests.acceptance.celery.agent_load import LISTS, faults, rows, run_turns
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet
from tests.acceptance.celery.mixed_load import Killer
from tests.celery_nodes import Fleet, until


@pytest.fixture(scope="module")
def module_fleet(make_fleet: MakeFleet, chaos_seed: int) -> Fleet:
    fleet = make_fleet(**faults(chaos_seed))
    for name in ("first", "second"):
        fleet.add_worker(name, *QUICK_START, *LISTS, "-c", "2", wait=False)
    fleet.add_beat()
    return fleet


def test_each_message_is_delivered_once_although_workers_are_killed(
    fleet: Fleet, chaos_seed: int
) -> None:
    killer = Killer(fleet, chaos_seed)
    run_turns(killer, chaos_seed, turns=6, agents=2, plan=["child", "whole_worker"])


def ask_patient(fleet: Fleet, name: str) -> TurnHandle[Any]:
    new = NewTurn(
        project="",
        agent=f"patient-{name}",
        profile=office.patient.profile,
        instruction=office.patient.instruction({"name": name}),
    )
    return agents_of(fleet.engine).send(new)


def written(fleet: Fleet, turn: TurnHandle[Any]) -> list[Any]:
    """Everything that a turn has left: cards, events, messages."""
    tables = {"card": "card_id", "agent_event": "number", "agent_inbox": "inbox_id"}
    where = f"WHERE agent_turn_id = '{turn.id}'"
    return [
        rows(fleet, f"SELECT {key} FROM flowengine_{table} {where} ORDER BY {key}")
        for table, key in tables.items()
    ]


def test_a_worker_suspended_in_a_model_call_writes_nothing_when_it_continues(
    fleet: Fleet,
) -> None:
    turn = ask_patient(fleet, "zombie")
    (pid,) = until(lambda: fleet.begun("zombie"), "the model call")
    (worker,) = [worker for worker in fleet.workers if pid in worker.children()]
    worker.freeze()
    pids = until(lambda: len(fleet.begun("zombie")) == 2 and fleet.begun("zombie"), "another try")
    assert pids[1] not in worker.children()
    fleet.let_go("zombie")
    assert turn.result(timeout=30) == f"answered by {pids[1]}"
    info, before = turn.info(), written(fleet, turn)
    assert (info.recoveries, info.steps) == (1, 1)
    refused = fleet.count_logged("refused a late report")
    worker.thaw()
    until(lambda: fleet.count_logged("refused a late report") == refused + 1, "the refusal")
    assert written(fleet, turn) == before
    assert turn.result() == f"answered by {pids[1]}"
    assert turn.info().epoch == info.epoch
