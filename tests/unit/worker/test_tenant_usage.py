"""A process serves the tenant last that it has worked for longest."""

from __future__ import annotations

from flowengine.worker.tenant_usage import TenantUsage


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_seconds_count_and_not_the_number_of_tasks() -> None:
    usage = TenantUsage()
    for _ in range(100):
        usage.count("quick", 0.001)
    usage.count("slow", 1.0)
    assert usage.heaviest == "slow"


def test_a_process_that_has_worked_for_nobody_prefers_nobody() -> None:
    assert TenantUsage().heaviest == ""


def test_work_loses_half_its_weight_every_ten_seconds() -> None:
    clock = Clock()
    usage = TenantUsage(clock)
    usage.count("earlier", 1.0)
    clock.now = 9.0
    usage.count("later", 0.5)
    assert usage.heaviest == "earlier"
    clock.now = 31.0
    usage.count("later", 0.3)
    assert usage.heaviest == "later"


def test_a_tenant_is_forgotten_when_its_work_has_no_weight_left() -> None:
    clock = Clock()
    usage = TenantUsage(clock)
    for number in range(1_000):
        clock.now += 1.0
        usage.count(f"tenant {number}", 0.1)
    assert len(usage._seconds) < 100


def test_every_fourth_claim_is_made_by_turns() -> None:
    usage = TenantUsage()
    usage.count("heavy", 60.0)
    usage.count("light", 0.1)
    assert [usage.last_to_serve() for _ in range(8)] == [*["heavy"] * 3, "light"] * 2
