"""flowengine on a Celery app that was there before."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from celery import Celery
from celery.exceptions import OperationalError, TimeoutError

from flowengine.errors import StartRefused
from tests.acceptance.celery.conftest import MakeFleet
from tests.celery_nodes import Fleet, until

SHOP = b"""
import os
import pathlib
import time

from celery import Celery
from flowengine import event_facet, workflow
from flowengine.assembly import FlowEngine

app = Celery("shop", broker=os.environ["SHOP_BROKER"], backend=os.environ["SHOP_BACKEND"])
app.conf.update(
    task_default_queue="counter",
    task_routes={"shop.sell": {"queue": "tills"}},
    task_queues=None,
    task_acks_late=True,
    task_ignore_result=False,
    worker_prefetch_multiplier=3,
    timezone="Europe/Paris",
    beat_schedule={
        "stocktaking": {"task": "shop.count", "schedule": 1.0},
        "deliveries": {
            "task": "flowengine.execute",
            "schedule": 1.0,
            "args": ("shop.deliver", {"order": 7}),
            "options": {"queue": "flowengine"},
        },
    },
)
FlowEngine(app)


@app.task(name="shop.sell")
def sell(price):
    return price * 2


@app.task(name="shop.queue_up")
def queue_up():
    pathlib.Path(os.environ["TRACES"], f"begun-customer-{os.getpid()}").touch()
    while not pathlib.Path(os.environ["TRACES"], "go-customer").exists():
        time.sleep(0.01)


@app.task(name="shop.count")
def count():
    return "counted"


@event_facet(name="shop.pack")
def pack(order: int) -> int:
    return order + 1


sold = event_facet(sell)


@workflow(name="shop.deliver")
def deliver(order: int) -> int:
    return pack(pack.named("wrap")(order))


@workflow(name="shop.trade")
def trade(price: int) -> int:
    return sold(price)
"""


@pytest.fixture(scope="module")
def module_fleet(make_fleet: MakeFleet) -> Fleet:
    fleet = make_fleet(imports="")
    fleet.environment["SHOP_BROKER"] = fleet.environment.pop("FLOWENGINE_BROKER_URL")
    fleet.environment["SHOP_BACKEND"] = fleet.environment.pop("FLOWENGINE_RESULT_BACKEND")
    content = {"shop.py": SHOP}
    fleet.add_worker("shop", app="shop", content=content, wait=False)
    fleet.add_beat("shop-beat", app="shop", content=content)
    return fleet


@pytest.fixture
def client(fleet: Fleet) -> Celery:
    return fleet.app


def test_the_app_runs_its_own_tasks_and_ours(fleet: Fleet, client: Celery) -> None:
    sold = client.send_task("shop.sell", args=(21,), queue="counter")
    assert sold.get(timeout=20) == 42
    order = ("shop.deliver", {"order": 1})
    client.send_task("flowengine.execute", order, task_id="order-1", queue="counter")

    def delivered() -> list[Any]:
        return [info for info in fleet.engine.list() if info.key == "order-1" and info.is_final]

    (run,) = until(delivered, "the delivery")
    assert run.outputs == {"result": 3}
    packed = client.send_task("shop.pack", args=(5,), queue="default")
    assert packed.get(timeout=20) == 6, "a facet is a Celery task under its own name"


def test_a_routed_task_is_a_step_on_the_queue_of_its_route(fleet: Fleet, client: Celery) -> None:
    start = ("shop.trade", {"price": 4})
    client.send_task("flowengine.execute", start, task_id="trade-1", queue="flowengine")

    def traded() -> list[Any]:
        return [info for info in fleet.engine.list() if info.key == "trade-1" and info.is_final]

    (run,) = until(traded, "the trade")
    assert run.outputs == {"result": 8}
    (task,) = fleet.engine.tasks(run.id)
    assert task.task_list_name == "tills", "by task_routes"
    delivered = [info for info in fleet.engine.list() if info.workflow == "shop.deliver"]
    lists = {task.task_list_name for info in delivered for task in fleet.engine.tasks(info.id)}
    assert lists <= {"counter"}, "by task_default_queue"


def test_a_refused_start_is_a_failure_that_its_sender_can_read(client: Celery) -> None:
    for workflow, inputs, reason in (
        (
            "shop.delivr",
            {"order": 1},
            r"imported no workflow 'shop\.delivr'; it has: shop\.deliver",
        ),
        ("shop.deliver", {"order": "many"}, r"'shop\.deliver' cannot be started: 'order' cannot"),
    ):
        sent = client.send_task("flowengine.execute", (workflow, inputs), queue="counter")
        with pytest.raises(StartRefused, match=reason):
            sent.get(timeout=20)
        assert sent.state == "FAILURE"


def test_its_owner_s_settings_are_kept(fleet: Fleet, client: Celery) -> None:
    inspect = client.control.inspect(timeout=1)
    (queues,) = inspect.active_queues().values()
    assert {queue["name"] for queue in queues} == {
        "counter",
        "default",
        "flowengine",
        "tills",
    }
    (conf,) = inspect.conf().values()
    assert conf["task_default_queue"] == "counter"
    assert conf["task_routes"] == {"shop.sell": {"queue": "tills"}}
    assert conf["task_acks_late"] is True
    assert conf["worker_prefetch_multiplier"] == 3
    assert conf["timezone"] == "Europe/Paris"
    assert set(conf["beat_schedule"]) == {"stocktaking", "deliveries", "flowengine.watchdog"}
    assert conf["beat_schedule"]["stocktaking"]["task"] == "shop.count"


def test_its_beat_ticks_for_both(fleet: Fleet) -> None:
    beat = fleet.beats[0]
    until(lambda: "Sending due task stocktaking" in beat.logs(), "its own entry")
    until(lambda: "Sending due task flowengine.watchdog" in beat.logs(), "our entry")
    until(lambda: fleet.count_logged("Task shop.count"), "its own periodic task")
    until(lambda: fleet.count_logged("Task flowengine.watchdog"), "our tick")


def test_an_entry_of_its_beat_starts_a_run_at_each_tick(fleet: Fleet) -> None:
    beat = fleet.beats[0]

    def runs() -> int:
        found = fleet.engine.list(workflow="shop.deliver", limit=1000)
        return sum(info.outputs == {"result": 9} for info in found)

    until(lambda: runs() >= 3, "three ticks")
    beat.kill()
    ticks = beat.logs().count("Sending due task deliveries")
    # It may have been killed before it sent the last one.
    until(lambda: runs() >= ticks - 1, "a run for each tick")
    assert runs() <= ticks


def test_its_worker_survives_a_lost_broker_with_a_late_acknowledgement_due(
    fleet: Fleet, client: Celery
) -> None:
    """Celery 5.7 by itself does not."""
    (worker,) = fleet.workers
    pid = worker.pid
    client.send_task("shop.queue_up", queue="counter")
    until(lambda: fleet.begun("customer"), "a task in flight")
    fleet.broker.server.stop()
    until(lambda: "Connection to broker lost" in worker.logs(), "the loss")
    fleet.broker.server.start()
    fleet.let_go("customer")

    def sold() -> bool:
        assert worker.is_alive(), worker.logs()[-2000:]
        try:
            return bool(client.send_task("shop.sell", (1,), queue="counter").get(timeout=2) == 2)
        except (TimeoutError, OperationalError, redis.ConnectionError):
            return False

    until(sold, "another sale")
    assert worker.pid == pid
