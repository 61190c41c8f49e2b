"""Which servers are dead, by heartbeat and by session lock, with a clock that the test moves."""

from __future__ import annotations

import itertools

import pytest

from flowengine.engine.deaths import death_rule
from flowengine.engine.liveness import Death, LivenessWindow, longest_unnoticed_gap
from flowengine.settings import Settings
from flowengine.store.lock_tokens import LockState, LockToken
from flowengine.store.servers import ServerDefinition

SETTINGS = Settings(server_timeout=30, lock_heartbeat_interval=1, watchdog_interval=0.5)
START = 1_000_000_000
PRESENT, EARLIER = "1700000000.5/1600000000", "1690000000.5/1600000000"

#: Milliseconds since the last heartbeat.
HEARTBEATS = {"fresh": 1_000, "just not missed": 2_000, "missed one": 2_500, "old": 31_000}
TOKENS = {
    "present": str(LockToken(1 << 62, PRESENT)),
    "earlier": str(LockToken(1 << 62, EARLIER)),
    "none": None,  # a pooler hides sessions, or an older version wrote the row
    "another form": "the token of a later version",
}


def _window(now: int = START, *, since: int = 60_000) -> LivenessWindow:
    """A window after passes at each half second."""
    window = LivenessWindow(0, longest_unnoticed_gap(SETTINGS))
    for at in range(now - since, now + 1, 500):
        window = window.observe(at, 450)
    return window


def _server(token: str | None, ago: int, now: int = START) -> ServerDefinition:
    return ServerDefinition("s", "", "", "s", ping_time=now - ago, lock_token=token)


def _rule(
    window: LivenessWindow, *, is_free: bool, settings: Settings = SETTINGS
) -> tuple[Death, list[str]]:
    """The rule for a database of the present incarnation, and the tokens that it probes."""
    probed: list[str] = []

    def probe(token: str) -> LockState:
        probed.append(token)
        parsed = LockToken.parse(token)
        return parsed.state(PRESENT, is_free=is_free) if parsed else LockState.UNKNOWN

    return death_rule(settings, window, probe), probed


@pytest.mark.parametrize(
    ("heartbeat", "token", "is_free"), [*itertools.product(HEARTBEATS, TOKENS, [True, False])]
)
def test_a_server_is_dead_by_an_old_heartbeat_or_by_a_missed_one_and_a_free_lock(
    heartbeat: str, token: str, is_free: bool
) -> None:
    death, _ = _rule(_window(), is_free=is_free)
    reason = death(_server(TOKENS[token], HEARTBEATS[heartbeat]))
    if heartbeat == "old":
        assert reason == "missed its heartbeat for 31 s"
    elif (heartbeat, token, is_free) == ("missed one", "present", True):
        assert reason == "has ended"
    else:
        assert reason is None


def test_a_server_is_dead_strictly_after_its_timeout() -> None:
    assert (Settings().heartbeat_interval, Settings().server_timeout) == (5, 30)
    death, _ = _rule(_window(), is_free=False)
    assert death(_server(None, 30_000)) is None
    assert death(_server(None, 30_001)) == "missed its heartbeat for 30 s"


def test_the_lock_of_a_server_is_probed_only_after_a_missed_heartbeat() -> None:
    death, probed = _rule(_window(), is_free=False)
    for ago in HEARTBEATS.values():
        death(_server(TOKENS["present"], ago))
    assert probed == [TOKENS["present"]], "not of a fresh one, and not of one that is dead anyway"


@pytest.mark.parametrize("outage", [1_500, 5_000, 600_000])
def test_an_outage_of_the_database_is_no_missed_heartbeat(outage: int) -> None:
    """The session of a lock may have ended in it, and the server had no time to acquire another."""
    server = _server(TOKENS["present"], 0)
    window = _window()
    for at in range(START + outage, START + outage + 2_001, 500):
        window = window.observe(at, 450)
        assert _rule(window, is_free=True)[0](server) is None
    window = window.observe(START + outage + 2_500, 450)
    assert _rule(window, is_free=True)[0](server) == "has ended"


def test_without_an_interval_locks_are_not_probed() -> None:
    off = Settings(lock_heartbeat_interval=0)
    death, probed = _rule(_window(), is_free=True, settings=off)
    assert death(_server(TOKENS["present"], 20_000)) is None
    assert probed == []


def test_a_token_is_read_as_it_was_written() -> None:
    token = LockToken((1 << 63) - 1, PRESENT)
    assert LockToken.parse(str(token)) == token
    assert LockToken.parse("") is None
    assert LockToken.parse("12@") is None
