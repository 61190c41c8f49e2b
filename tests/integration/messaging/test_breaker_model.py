"""The Lua scripts of a shared breaker agree with the pure state machine."""

from __future__ import annotations

import random

import redis

from flowengine.circuit_breaker import Circuit, CircuitBreakerConfig, Outcome, Permit
from flowengine.messaging import SyncCircuitBreaker

#: Durations are so long that the real time of a sequence does not matter.
CONFIG = CircuitBreakerConfig(
    failure_threshold=2,
    timeout_seconds=600,
    recovery_timeout_seconds=3000,
    half_open_max_calls=2,
    success_threshold=2,
    probe_lease_seconds=300,
)
STEPS = (200, 400, 700, 3100)  # no sum of them is a lease of 300 seconds
OUTCOMES: tuple[Outcome, ...] = ("success", "success", "failure", "failure", "neither")


class Pair:
    """A shared breaker and its model, with a common clock."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self._client, self._name = client, name
        self._shared, self._model = SyncCircuitBreaker(client, name, CONFIG), Circuit(CONFIG)
        self._now = 0.0
        self._open: list[tuple[Permit, Permit]] = []

    def permit(self) -> None:
        shared, model = self._shared.permit(), self._model.permit(self._now, 300)
        assert (shared.granted, shared.state, shared.epoch) == (
            model.granted,
            model.state,
            model.epoch,
        )
        assert abs(shared.retry_after - model.retry_after) < 60
        self._open.append((shared, model))

    def settle(self, rng: random.Random) -> None:
        if not self._open:
            return
        shared, model = self._open.pop(rng.randrange(len(self._open)))
        outcome = rng.choice(OUTCOMES)
        report = {
            "success": self._shared.success,
            "failure": self._shared.failure,
            "neither": self._shared.release,
        }
        report[outcome](shared)
        self._model.settle(self._now, model, outcome)

    def advance(self, seconds: float) -> None:
        self._now += seconds
        state, probes = f"ao:cb:state:{self._name}", f"ao:cb:probes:{self._name}"
        if self._client.hexists(state, "changed"):
            self._client.hincrby(state, "changed", -round(seconds * 1_000_000))
        for token in self._client.zrange(probes, 0, -1):
            self._client.zincrby(probes, -seconds * 1_000_000, token)


def test_the_scripts_agree_with_the_state_machine_over_random_sequences(
    client: redis.Redis,
) -> None:
    rng = random.Random(20_252)
    epochs = set()
    for number in range(30):
        pair = Pair(client, f"shop-{number}")
        for _ in range(100):
            action = rng.random()
            if action < 0.45:
                pair.permit()
            elif action < 0.85:
                pair.settle(rng)
            else:
                pair.advance(rng.choice(STEPS))
        epochs.add(SyncCircuitBreaker(client, f"shop-{number}", CONFIG).snapshot().epoch)
    assert max(epochs) >= 10, "the sequences make transitions"
