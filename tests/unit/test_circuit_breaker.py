"""The state machine of circuit breakers, with a clock that the test moves."""

from __future__ import annotations

import pytest

from flowengine.authoring import Breaker
from flowengine.circuit_breaker import (
    TRANSITIONS,
    Circuit,
    CircuitBreakerConfig,
    CircuitState,
    Outcome,
    Permit,
)
from flowengine.worker.breakers import LocalCircuitBreaker

LEASE = 5.0


class Subject:
    """A circuit with a clock and short calls."""

    def __init__(self, **config: float) -> None:
        given = {
            "failure_threshold": 2,
            "timeout_seconds": 10.0,
            "half_open_max_calls": 2,
            "success_threshold": 2,
            "recovery_timeout_seconds": 50.0,
            **config,
        }
        self.now = 0.0
        self._circuit = Circuit(CircuitBreakerConfig(**given))  # type: ignore[arg-type]

    def permit(self) -> Permit:
        return self._circuit.permit(self.now, LEASE)

    def settle(self, permit: Permit, outcome: Outcome) -> None:
        self._circuit.settle(self.now, permit, outcome)

    def call(self, outcome: Outcome) -> None:
        self.settle(self.permit(), outcome)

    def open_until(self, now: float) -> None:
        for _ in range(2):
            self.call("failure")
        self.now = now


def test_every_state_can_be_left_and_reached() -> None:
    assert {state for state, _ in TRANSITIONS} == set(CircuitState) == set(TRANSITIONS.values())


def test_consecutive_failures_open_the_breaker() -> None:
    circuit = Subject()
    outcomes: list[Outcome] = ["failure", "success", "failure", "neither"]
    for outcome in outcomes:
        circuit.call(outcome)
    assert circuit.permit().granted
    circuit.call("failure")
    circuit.now = 4
    denied = circuit.permit()
    assert (denied.granted, denied.retry_after, denied.state) == (False, 6, CircuitState.OPEN)


def test_the_number_of_concurrent_probes_is_limited() -> None:
    circuit = Subject()
    circuit.open_until(10)
    first, second = circuit.permit(), circuit.permit()
    assert first.granted
    assert second.granted
    third = circuit.permit()
    assert (third.granted, third.retry_after, third.state) == (False, 1, CircuitState.HALF_OPEN)
    circuit.settle(first, "neither")
    assert circuit.permit().granted, "a returned slot is free"


def test_enough_successful_probes_close_the_breaker() -> None:
    circuit = Subject()
    circuit.open_until(10)
    for permit in (circuit.permit(), circuit.permit()):
        circuit.settle(permit, "success")
    assert all(circuit.permit().granted for _ in range(10))


def test_one_failed_probe_opens_the_breaker_again() -> None:
    circuit = Subject()
    circuit.open_until(10)
    first, second = circuit.permit(), circuit.permit()
    circuit.settle(first, "failure")
    circuit.settle(second, "success")
    assert circuit.permit().retry_after == 10


def test_the_slot_of_an_unreported_probe_is_free_when_its_lease_expires() -> None:
    circuit = Subject(half_open_max_calls=1)
    circuit.open_until(10)
    lost = circuit.permit()
    circuit.now = 14.9
    assert not circuit.permit().granted
    circuit.now = 15
    assert circuit.permit().granted
    circuit.settle(lost, "failure")
    assert not circuit.permit().granted, "there is one slot, and it is taken"
    circuit.now = 20
    assert circuit.permit().granted, "a probe without a lease does not open the breaker"


def test_a_recovery_that_takes_too_long_opens_the_breaker_again() -> None:
    circuit = Subject()
    circuit.open_until(10)
    circuit.call("success")
    circuit.now = 61
    assert circuit.permit().retry_after == 9, "open since the recovery timed out at 60"


def test_the_outcome_of_a_call_from_an_earlier_epoch_is_ignored() -> None:
    circuit = Subject()
    old = circuit.permit()
    circuit.open_until(10)
    for permit in (circuit.permit(), circuit.permit()):
        circuit.settle(permit, "success")
    circuit.settle(old, "failure")
    circuit.call("failure")
    assert circuit.permit().granted


@pytest.mark.parametrize(
    ("error", "granted"), [(OSError(), False), (FileNotFoundError(), True), (KeyError(), True)]
)
def test_a_local_breaker_counts_the_errors_it_is_configured_for(
    error: Exception, granted: bool
) -> None:
    declared = Breaker("bank", failure_on=(OSError,), ignore=(FileNotFoundError,))
    config = CircuitBreakerConfig(failure_threshold=1)
    breaker = LocalCircuitBreaker(declared, config, lambda: 0.0)
    breaker.failure(breaker.permit(lease=1.0), error)
    assert breaker.permit(lease=1.0).granted is granted
