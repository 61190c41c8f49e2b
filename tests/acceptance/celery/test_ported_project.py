"""A larger project on Celery, ported as the guide says: examples/celery_orders."""

from __future__ import annotations

import difflib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.celery.sentry import Sentry
from tests.acceptance.celery.test_existing_project import Project
from tests.celery_nodes import until
from tests.celery_nodes.fleet import ROOT
from tests.celery_nodes.processes import GuardedProcess
from tests.servers import PostgresServer, RedisServer

PROJECT = ROOT / "examples" / "celery_orders"
QUEUES = "celery,payments,flowengine"


class Orders(Project):
    """The project in a directory of its own, with a Sentry."""

    def __init__(self, directory: Path, redis: str, database: str, sentry: Sentry) -> None:
        super().__init__(directory, redis, database, PROJECT)
        self.environment["SENTRY_DSN"] = sentry.dsn

    def lines(self, file: str) -> list[str]:
        path = self.directory / file
        return path.read_text().splitlines() if path.exists() else []

    def place(self, module: str, read: str) -> dict[str, str]:
        """Place the orders of all customers; return the mail or the error that each ends with."""
        placed = self.python("-c", PLACE.format(module=module, read=read, orders=ORDERS))
        found: dict[str, str] = json.loads(placed.splitlines()[-1])
        return found


GOODS = ["kettle", "cup"]
ORDERS = {
    **dict.fromkeys(("ada", "grace", "sloane", "mallory"), GOODS),
    "eve": ["teapot"],
}
PLACE = """
import json
import {module}
placed = {{n: {module}.place_order("o-" + n, n, goods) for n, goods in {orders}.items()}}
ends = {{}}
for name, order in placed.items():
    try:
        ends[name] = order.{read}(timeout=100)
    except Exception as problem:
        ends[name] = str(problem)
print(json.dumps(ends))
"""


@pytest.fixture
def sentry() -> Iterator[Sentry]:
    sentry = Sentry()
    yield sentry
    sentry.close()


@pytest.fixture
def orders(
    postgres: PostgresServer, redis_server: RedisServer, tmp_path: Path, sentry: Sentry
) -> Orders:
    redis_server.flush()
    address = redis_server.url.rpartition("/")[0]
    return Orders(tmp_path, address, postgres.new_database(), sentry)


def worker(orders: Orders, module: str, *arguments: str) -> GuardedProcess:
    return orders.worker(module, "-Q", QUEUES, *arguments)


def test_the_port_is_a_diff_of_less_than_60_lines_and_changes_no_body_of_a_task() -> None:
    before, after = ((PROJECT / f"{name}.py").read_text() for name in ("before", "after"))
    changed = [
        line
        for line in difflib.ndiff(before.splitlines(), after.splitlines())
        if line.startswith(("+ ", "- "))
    ]
    assert len(changed) < 60
    for task in before.split("\n\n\n"):
        if "@app.task" in task and "tell_failure" not in task and "report_takings" not in task:
            assert task[task.index("@app.task") :] in after


def told(orders: Orders, sentry: Sentry, module: str, read: str) -> dict[str, object]:
    """Place orders that succeed, fail and hang; return everything that others can see of them."""
    ends = orders.place(module, read)
    assert "the card of mallory is declined" in ends.pop("mallory")
    assert "nobody sells teapot" in ends.pop("eve")
    wanted = {("orders.charge_card", "CardDeclined"), ("orders.check_order", "ValueError")}
    until(lambda: wanted <= sentry.errors(), "the errors in Sentry")
    keys = [line.split()[0] for line in orders.lines("charges.txt")]
    assert len(keys) == len(set(keys)) == 3
    return {
        "results": ends,
        "sentry": {e for e in sentry.errors() if e[0].startswith(("orders.", "flowengine."))},
        "failures": sorted(set(orders.lines("failures.txt"))),
        "audit": sorted(orders.lines("audit.txt")),
        "told": sorted(orders.lines("told.txt")),
        "mails": sorted(orders.lines("mails.txt")),
    }


@pytest.mark.chaos
def test_the_old_project_tells_of_its_failures(orders: Orders, sentry: Sentry) -> None:
    running = worker(orders, "before")
    try:
        assert told(orders, sentry, "before", "get") == EXPECTED
    finally:
        running.stop()


@pytest.mark.parametrize(("module", "read"), [("after", "result"), ("imported", "get")])
def test_the_ported_project_and_the_imported_canvas_tell_of_failures_like_the_old_one(
    orders: Orders, sentry: Sentry, module: str, read: str
) -> None:
    orders.python("-m", "flowengine", "-A", module, "db", "upgrade")
    running = worker(orders, module, "--beat")
    try:
        assert told(orders, sentry, module, read) == EXPECTED
    finally:
        running.stop()


MAIL = "{0}: invoice o-{0}: {0} paid 3050; shipped o-{0}: 2 things"
EXPECTED: dict[str, object] = {
    "results": {name: MAIL.format(name) for name in ("ada", "grace", "sloane")},
    "sentry": {("orders.charge_card", "CardDeclined"), ("orders.check_order", "ValueError")},
    "failures": ["orders.charge_card CardDeclined", "orders.check_order ValueError"],
    "audit": sorted(
        [
            *(f"begun orders.charge_card of o-{n}" for n in ("ada", "sloane", "mallory")),
            *["begun orders.charge_card of o-grace"] * 3,
            *["again orders.charge_card of o-grace: the line is busy"] * 2,
            "failed orders.charge_card of o-mallory: the card of mallory is declined",
        ]
    ),
    "told": ["order o-eve: nobody sells teapot", "the card of mallory is declined"],
    "mails": [MAIL.format(name) for name in ("ada", "grace", "sloane")],
}


def test_a_killed_pool_child_is_a_failure_of_the_task_that_it_ran(
    orders: Orders, sentry: Sentry
) -> None:
    orders.environment["SHOP_SOFT_LIMIT"] = "100"
    orders.python("-m", "flowengine", "-A", "after", "db", "upgrade")
    running = worker(orders, "after", "--beat", "--concurrency", "2")
    try:
        start = "import after; print(after.place_order('o-sloane', 'sloane', ['cup']).id)"
        orders.python("-c", start)
        until(lambda: orders.lines("charges.txt"), "the charge")
        for pid in running.children():
            os.kill(pid, signal.SIGKILL)
        until(
            lambda: "orders.charge_card WorkerLostError" in orders.lines("failures.txt"),
            "the failure of the task",
        )
        assert not any("flowengine." in line for line in orders.lines("failures.txt"))
        assert not any("flowengine." in name for name, _ in sentry.errors())
        assert len(orders.lines("charges.txt")) == 1
    finally:
        running.stop()
