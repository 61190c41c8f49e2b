"""The first message of an agent is one statement, which is refused whole if a row is there."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from flowengine.agents import Agents, TurnHandle
from flowengine.agents.enqueue import Enqueuer
from flowengine.agents.first_messages import FirstMessages
from flowengine.store.commits import CommitRefused
from tests.integration.agents.clerks import Office, ask_each, clerk, plan


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The outcomes of first messages, in their order."""
    outcomes: list[str] = []
    real: Callable[..., Any] = FirstMessages.send

    def send(*given: Any) -> Any:
        try:
            found = real(*given)
        except CommitRefused:
            outcomes.append("refused")
            raise
        outcomes.append("written")
        return found

    monkeypatch.setattr(FirstMessages, "send", send)
    plan.reset({"task": ["done"]})
    return outcomes


def _finished(desk: Office, *turns: TurnHandle[Any]) -> None:
    desk.work()
    assert [turn.result(timeout=0) for turn in turns] == ["done"] * len(turns)
    desk.check(*turns)


def test_the_profile_is_stored_by_the_first_message_of_all(
    on_server: Office, sent: list[str]
) -> None:
    turns = [clerk.send("task") for _ in range(3)]
    assert sent == ["refused", "written", "written"]
    _finished(on_server, *turns)


def test_a_second_message_with_the_same_key_returns_the_first_turn(
    on_server: Office, sent: list[str]
) -> None:
    clerk.send("task")
    first, second = (clerk.at("").options(key="mail-17").send("task") for _ in range(2))
    assert sent == ["refused", "written", "refused"]
    assert (first.id, first.duplicate, second.duplicate) == (second.id, False, True)
    _finished(on_server, first)


def test_of_messages_with_one_key_that_are_sent_together_one_counts(
    on_server: Office, sent: list[str]
) -> None:
    clerk.send("task")
    gate = threading.Barrier(8)

    def send(_: int) -> TurnHandle[Any]:
        gate.wait()
        return clerk.at("").options(key="mail-17").send("task")

    with ThreadPoolExecutor(8) as threads:
        turns = list(threads.map(send, range(8)))
    assert len({turn.id for turn in turns}) == 1
    assert sorted(turn.duplicate for turn in turns) == [False] + [True] * 7
    assert sent.count("written") == 1
    _finished(on_server, turns[0])


def test_a_message_waits_for_a_purge_of_its_profile_and_stores_it_again(
    on_server: Office, sent: list[str]
) -> None:
    desk, turns = on_server, list[TurnHandle[Any]]()
    clerk.send("task")
    desk.work()
    sender = threading.Thread(target=lambda: turns.append(clerk.send("task")))
    with desk.engine.database.write() as session:
        session.rows("DELETE FROM flowengine_agent_turn RETURNING 1", ())
        assert session.agent_purge.remove_profiles(desk.clock.now + 1, None, 10) == 1
        sender.start()
        sender.join(0.3)
        assert sender.is_alive()
    sender.join(30)
    assert sent == ["refused", "refused"]
    assert turns[0].info().state == "active"
    profiles = desk.rows("SELECT count(*) FROM flowengine_card WHERE type = 'sys.profile'")
    assert profiles == [(1,)]
    desk.work()
    assert turns[0].result(timeout=0) == "done"


def test_a_message_to_a_named_agent_takes_its_lock(on_server: Office, sent: list[str]) -> None:
    turns = [clerk.at("ada").send("task") for _ in range(2)]
    assert sent == []
    assert [turn.info().state for turn in turns] == ["active", "queued"]


def test_a_first_message_does_not_deadlock_with_one_in_a_transaction(
    on_server: Office, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, others = on_server, list[TurnHandle[Any]]()
    clerk.send("task")
    real: Callable[..., Any] = Enqueuer._store
    other = threading.Thread(target=lambda: others.append(_keyed().send("task")))

    def store(*given: Any) -> Any:
        # The head is locked, and nothing else is written yet: the other waits for the head.
        other.start()
        other.join(0.3)
        assert other.is_alive()
        return real(*given)

    monkeypatch.setattr(Enqueuer, "_store", store)
    with desk.engine.database.engine.begin() as connection:
        turn = _keyed().options(key="mail-17", connection=connection).send("task")
    other.join(30)
    assert [o.id for o in others] == [turn.id]
    assert sent == ["refused", "refused"]
    _finished(desk, turn)


def _keyed() -> Any:
    return clerk.at("").options(key="mail-17")


def test_a_step_that_asks_again_has_the_same_turn(
    on_server: Office, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, real = on_server, Agents.ask
    clerk.send("task")
    monkeypatch.setattr(Agents, "ask", lambda *given: [real(*given), real(*given)][1])
    run = desk.flow.start(ask_each, ["task", "task"])
    desk.work()
    assert run.result(timeout=0) == ["done", "done"]
    assert Counter(sent) == {"written": 2, "refused": 3}
