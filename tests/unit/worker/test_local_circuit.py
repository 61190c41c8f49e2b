"""A circuit of one process: the same rules as in Redis, by a clock that the test moves."""

from __future__ import annotations

from flowengine.worker.local_circuit import TRANSITIONS, Limits, LocalCircuit, Permit

LEASE = 5.0


class Circuit(LocalCircuit):
    def __init__(self, **limits: float) -> None:
        self.now = 0.0
        given = {
            "failure_threshold": 2,
            "timeout_seconds": 10.0,
            "half_open_max_calls": 2,
            "success_threshold": 2,
            "recovery_timeout_seconds": 50.0,
            **limits,
        }
        super().__init__(Limits(**given), lambda: self.now)  # type: ignore[arg-type]

    def ask(self) -> Permit:
        return self.permit(LEASE)

    def open_it(self) -> None:
        for _ in range(2):
            self.ask().settle("failure")


def test_every_state_has_a_way_out_and_each_way_leads_to_a_state() -> None:
    assert all(TRANSITIONS.values())
    assert {new for ways in TRANSITIONS.values() for new in ways.values()} == TRANSITIONS.keys()


def test_it_opens_after_so_many_failures_in_a_row() -> None:
    circuit = Circuit()
    for outcome in ("failure", "success", "failure", "neither"):
        circuit.ask().settle(outcome)  # type: ignore[arg-type]
    assert circuit.ask().granted
    circuit.ask().settle("failure")
    circuit.now = 4
    denied = circuit.ask()
    assert (denied.granted, denied.retry_after) == (False, 6)


def test_half_open_it_lets_so_many_probes_through_at_once() -> None:
    circuit = Circuit()
    circuit.open_it()
    circuit.now = 10
    first, second = circuit.ask(), circuit.ask()
    assert first.granted
    assert second.granted
    third = circuit.ask()
    assert (third.granted, third.retry_after) == (False, 1.0)
    first.settle("neither")
    assert circuit.ask().granted, "a slot that was given back is another's"


def test_it_closes_when_enough_probes_succeed() -> None:
    circuit = Circuit()
    circuit.open_it()
    circuit.now = 10
    for permit in (circuit.ask(), circuit.ask()):
        permit.settle("success")
    assert all(circuit.ask().granted for _ in range(10))


def test_one_probe_that_fails_opens_it_again() -> None:
    circuit = Circuit()
    circuit.open_it()
    circuit.now = 10
    first, second = circuit.ask(), circuit.ask()
    first.settle("failure")
    second.settle("success")
    assert circuit.ask().retry_after == 10


def test_a_probe_that_is_not_heard_of_loses_its_slot_with_its_lease() -> None:
    circuit = Circuit(half_open_max_calls=1)
    circuit.open_it()
    circuit.now = 10
    lost = circuit.ask()
    circuit.now = 14.9
    assert not circuit.ask().granted
    circuit.now = 15
    assert circuit.ask().granted
    lost.settle("failure")
    assert not circuit.ask().granted, "there is one slot, and it is taken"
    circuit.now = 20
    assert circuit.ask().granted, "what a given-up probe says opens nothing"


def test_a_recovery_that_takes_too_long_is_over() -> None:
    circuit = Circuit()
    circuit.open_it()
    circuit.now = 10
    circuit.ask().settle("success")
    circuit.now = 61
    assert circuit.ask().retry_after == 9, "it is open since its recovery was over"


def test_how_a_call_ended_that_began_before_the_last_change_is_not_counted() -> None:
    circuit = Circuit()
    old = circuit.ask()
    circuit.open_it()
    circuit.now = 10
    for permit in (circuit.ask(), circuit.ask()):
        permit.settle("success")
    old.settle("failure")
    circuit.ask().settle("failure")
    assert circuit.ask().granted
