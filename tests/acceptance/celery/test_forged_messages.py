"""A client of the broker can send any message. No such message runs a step or ends a worker.

`test_combinations` does the same on RabbitMQ.
"""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.acceptance.celery.attack import ARGUMENTS, ATTACKED, attack
from tests.acceptance.celery.conftest import MakeFleet
from tests.acceptance.celery.forger import RedisQueues
from tests.celery_nodes import Fleet


@pytest.fixture(scope="module")
def module_fleet(make_fleet: MakeFleet) -> Fleet:
    fleet = make_fleet(**ATTACKED)
    fleet.add_worker("only", *ARGUMENTS)
    return fleet


def test_forged_messages_run_no_step_and_end_no_worker(fleet: Fleet) -> None:
    with closing(RedisQueues(fleet.broker.url)) as queues:
        attack(fleet, queues, 15, 813)


@pytest.mark.chaos
def test_ten_thousand_forged_messages_run_no_step(fleet: Fleet, chaos_seed: int) -> None:
    with closing(RedisQueues(fleet.broker.url)) as queues:
        attack(fleet, queues, chaos_seed, 10_000)
