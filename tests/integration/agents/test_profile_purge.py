"""Profiles that no turn has any more are removed, and never one that a turn is about to have."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from flowengine.agents import TurnHandle, agent
from flowengine.models import ScriptedModel
from flowengine.store.agent_purge import AgentPurge
from tests.integration.agents.clerks import Office

_DAY = 86_400


@agent(model=ScriptedModel(lambda request: "hi"), name="tests.lengthy")
def lengthy(text: str) -> str:
    """Placeholder."""
    return text


# So long that the profile is a large value, which is stored by itself.
lengthy.definition.fn.__doc__ = "You are thorough. " * 1_000


def _profiles(desk: Office) -> tuple[int, int]:
    """The number of profiles, and of large values."""
    cards = desk.rows("SELECT count(*) FROM flowengine_card WHERE type = 'sys.profile'")
    (values,) = desk.rows(
        "SELECT count(*) FROM flowengine_payload WHERE body LIKE %s", "%You are thorough%"
    )
    return cards[0][0], values[0]


def _purge(desk: Office) -> None:
    desk.engine.purger.purge_turns(older_than=_DAY)
    desk.engine.purger.purge(older_than=_DAY)  # the runs of the calls


def _unused(desk: Office) -> None:
    """Leave a profile that no turn has."""
    turn = lengthy.send("hello")
    desk.work()
    assert turn.result(timeout=5) == "hi"
    desk.clock.advance(seconds=2 * _DAY)
    remove = AgentPurge.remove_profiles
    AgentPurge.remove_profiles = lambda *_: 0  # type: ignore[method-assign, assignment]
    try:
        _purge(desk)
    finally:
        AgentPurge.remove_profiles = remove  # type: ignore[method-assign]
    assert _profiles(desk) == (1, 1)


def _answered(desk: Office, turn: TurnHandle[str]) -> None:
    """The turn has its profile, for processes that do not know it yet, too."""
    desk.agents.profiles._known.clear()
    desk.work()
    assert turn.result(timeout=5) == "hi"
    desk.agents.profiles._known.clear()
    assert desk.agents.outcome(turn.project, turn.id) == (turn.info(), "hi")
    assert desk.engine.doctor() == []
    assert _profiles(desk) == (1, 1)


def test_a_purge_removes_the_profiles_that_no_turn_has(desk: Office) -> None:
    lengthy.at("ada", project="a").send("hello")
    lengthy.at("ada", project="b").send("hello")
    desk.work()
    assert _profiles(desk) == (2, 1)
    _purge(desk)
    assert _profiles(desk) == (2, 1)
    desk.clock.advance(seconds=2 * _DAY)
    lengthy.at("eva", project="b").send("hello")
    desk.work()
    _purge(desk)
    assert _profiles(desk) == (1, 1)
    desk.clock.advance(seconds=2 * _DAY)
    _purge(desk)
    assert _profiles(desk) == (0, 0)
    again = lengthy.at("ada").send("hello")
    _answered(desk, again)


def test_a_young_profile_is_kept(desk: Office) -> None:
    _unused(desk)
    desk.engine.purger.purge_turns(older_than=10 * _DAY)
    assert _profiles(desk) == (1, 1)


def test_a_purge_skips_the_profile_of_a_message_that_is_being_sent(on_server: Office) -> None:
    _unused(on_server)
    with on_server.engine.database.engine.begin() as connection:
        turn = lengthy.at("ada").options(connection=connection).send("hello")
        on_server.engine.purger.purge_turns(older_than=_DAY)
    _answered(on_server, turn)


def test_a_purge_keeps_a_profile_that_was_sent_while_it_looked(
    desk: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first statement found it unused, and its lock came after the commit of the message."""
    _unused(desk)
    turn = lengthy.send("hello")
    (found,) = desk.rows("SELECT card_id FROM flowengine_card WHERE type = 'sys.profile'")
    monkeypatch.setattr(AgentPurge, "_unused_profiles", lambda *_: {"": [found[0]]})
    with desk.engine.database.write() as session:
        assert session.agent_purge.remove_profiles(desk.clock.now, None, 100) == 0
    _answered(desk, turn)


def test_a_message_waits_for_the_purge_of_its_profile_and_stores_it_again(
    on_server: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    _unused(on_server)
    locked, sent = threading.Event(), threading.Event()
    has_waited: list[bool] = []
    find: Callable[..., Any] = AgentPurge._unused_profiles

    def slowly(*given: Any) -> Any:
        found = find(*given)
        if not locked.is_set():
            locked.set()
            has_waited.append(not sent.wait(1))  # the message waits for this transaction
        return found

    monkeypatch.setattr(AgentPurge, "_unused_profiles", slowly)
    purge = threading.Thread(
        target=lambda: on_server.engine.purger.purge_turns(older_than=_DAY), daemon=True
    )
    purge.start()
    assert locked.wait(10)
    turn = lengthy.send("hello")
    sent.set()
    purge.join(10)
    assert has_waited == [True]
    assert not purge.is_alive()
    _answered(on_server, turn)


def test_two_purges_never_hold_the_lock_of_the_references_together(on_server: Office) -> None:
    """Both would wait for the other before they delete a row: a deadlock."""
    database = on_server.engine.database
    with database.write() as first, database.write() as second:
        assert first.purge._lock_references()
        assert not second.purge._lock_references()


def test_messages_and_purges_at_the_same_time_lose_no_profile(on_server: Office) -> None:
    _unused(on_server)
    stop = threading.Event()
    problems: list[BaseException] = []

    def purge() -> None:
        try:
            while not stop.is_set():
                on_server.engine.purger.purge_turns(older_than=_DAY)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=purge, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    turns = []
    for _ in range(20):
        on_server.clock.advance(seconds=2 * _DAY)
        turns.append(lengthy.send("hello"))
        on_server.agents.profiles._known.clear()
        on_server.flow.settle()
        assert turns[-1].result(timeout=5) == "hi"
    stop.set()
    for thread in threads:
        thread.join(10)
    assert problems == []
