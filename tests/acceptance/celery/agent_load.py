"""Messages to agents of a fleet that is under fire, and the rows that they leave."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

from sqlalchemy import text

from flowengine.agents import agents_of
from flowengine.agents.enqueue import NewTurn
from tests.acceptance.celery import office
from tests.acceptance.celery.mixed_load import Killer
from tests.celery_nodes import Fleet, until

LOSSY = "tests.acceptance.celery.lossy"  # named, not imported: it would disturb this process too
LISTS = ("-Q", "models,tools,default")


def faults(seed: int) -> dict[str, str]:
    """Settings of a fleet that loses and doubles messages."""
    return {
        "imports": f"{office.__name__},{LOSSY}",
        "LOSSY_SEED": str(seed),
        "LOSSY_SHARES": "0.3,0.3,0",  # lost, doubled, delayed
    }


def rows(fleet: Fleet, query: str) -> list[Any]:
    with fleet.engine.database.read() as session:
        return list(session.connection.execute(text(query)))


def send(fleet: Fleet, turns: int, agents: int) -> list[str]:
    """Send messages, each twice under its key."""
    part, ids = agents_of(fleet.engine), []
    for number in range(turns):
        new = NewTurn(
            project="",
            agent=f"agent-{number % agents}",
            profile=office.clerk.profile,
            instruction=office.clerk.instruction({"ticket": f"ticket {number}"}),
            key=f"mail-{number}",
        )
        first, second = part.send(new), part.send(new)
        assert (first.id, second.duplicate) == (second.id, True)
        ids.append(first.id)
    return ids


def open_turns(fleet: Fleet) -> int:
    query = "SELECT count(*) FROM flowengine_agent_turn WHERE finished_at IS NULL"
    return int(rows(fleet, query)[0][0])


def run_turns(killer: Killer, seed: int, turns: int, agents: int, plan: list[str]) -> None:
    """Send messages, kill in an order drawn from the seed, and check every row."""
    fleet = killer.fleet
    killer.lots.shuffle(plan)
    ids = send(fleet, turns, agents)
    for what in plan:
        if not open_turns(fleet):
            break
        killer.wait(0.8)
        killer.kill(what)
    fleet.heal()
    until(lambda: not open_turns(fleet), "the end of all turns", seconds=120 + turns, pause=0.2)
    check_turns(fleet, ids, agents)
    made = Counter(path.name.rsplit("-", 2)[0] for path in fleet.traces.glob("model-*"))
    answers = rows(fleet, "SELECT count(*) FROM flowengine_card WHERE type = 'agent.thought'")
    lost = rows(fleet, "SELECT count(*) FROM flowengine_task WHERE outcome = 'lost'")[0][0]
    recovered = rows(fleet, "SELECT sum(recoveries) FROM flowengine_agent_turn")[0][0]
    again = sum(made.values()) - answers[0][0]
    print(
        f"\nseed {seed}: {turns} turns of {agents} agents; killed {dict(killer.kills)}; {lost} "
        f"tries lost, {recovered} turns entered again; {answers[0][0]} answers recorded, "
        f"{again} model calls made again"
    )
    assert 0 <= again <= lost, "a model is asked again only if the process that asked it died"


def check_turns(fleet: Fleet, ids: list[str], agents: int) -> None:
    """One turn, one delivery and one event for each message; every row is as it must be."""
    turns = rows(
        fleet,
        "SELECT agent_turn_id AS id, agent_id AS agent, task_status AS status, enqueued_at, "
        "dispatched_at, finished_at, steps, deliverable_card_id AS card FROM "
        "flowengine_agent_turn ORDER BY enqueued_at, agent_turn_id",
    )
    asked = [turn for turn in turns if turn.id in set(ids)]
    assert len(asked) == len(ids)
    assert len(turns) == 2 * len(ids), "each clerk has asked one counter"
    assert {turn.status for turn in turns} == {"success"}
    assert {turn.steps for turn in asked} == {office.STEPS}
    events = rows(fleet, "SELECT agent_turn_id FROM flowengine_agent_event WHERE kind = 'task'")
    assert sorted(row[0] for row in events) == sorted(turn.id for turn in turns)
    cards = Counter(row[0] for row in rows(fleet, "SELECT type FROM flowengine_card"))
    assert cards["task.deliverable"] == len(turns)
    assert cards["agent.thought"] == (office.STEPS + 1) * len(ids)
    assert cards["tool.result"] == cards["tool.call"] == 4 * len(ids)
    part = agents_of(fleet.engine)
    for turn_id in ids[:: max(1, len(ids) // 20)]:
        assert part.handle("", turn_id).result(timeout=0) == office.RESULT
    # One message at a time, in the order in which they were sent.
    for agent in {turn.agent for turn in asked}:
        own = [turn for turn in asked if turn.agent == agent]
        assert [turn.dispatched_at for turn in own] == sorted(turn.dispatched_at for turn in own)
        for before, after in pairwise(own):
            assert before.finished_at <= after.dispatched_at
    heads = rows(
        fleet, "SELECT DISTINCT status, waiting_tool_count FROM flowengine_agent_state_head"
    )
    assert [tuple(head) for head in heads] == [("idle", 0)]
    left = "SELECT count(*) FROM flowengine_agent_inbox WHERE status <> 'consumed'"
    assert rows(fleet, left)[0][0] == 0
    runs = rows(fleet, "SELECT DISTINCT state FROM flowengine_run")
    assert [row[0] for row in runs] == ["COMPLETED"]
