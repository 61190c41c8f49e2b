"""/health, /status and /metrics of a Celery worker, with the setting `status_port`."""

from __future__ import annotations

import json
import socket
import urllib.request

from tests.acceptance.celery import graphs
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet
from tests.celery_nodes.fleet import until


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def get(address: str) -> tuple[int, str]:
    with urllib.request.urlopen(address, timeout=20) as answer:
        return answer.status, answer.read().decode()


def test_a_worker_with_a_status_port_serves_the_pages_of_a_runner(make_fleet: MakeFleet) -> None:
    port = free_port()
    fleet = make_fleet(FLOWENGINE_STATUS_PORT=str(port))
    fleet.add_worker("worker", *QUICK_START, "--concurrency=2")
    assert fleet.start(graphs.mixed, n=3).result(timeout=60) == graphs.expected(3)
    # If another process has taken the port meanwhile, the worker has the next one.
    until(lambda: fleet.count_logged("status at http://127.0.0.1:") == 1, "the status")
    words = fleet.logs().split()
    address = next(word for word in words if word.startswith("http://127.0.0.1:"))
    address = address.removesuffix("/status")
    assert get(f"{address}/health") == (200, '{"status":"ok"}')
    status = json.loads(get(f"{address}/status")[1])
    (server,) = fleet.engine.servers()
    assert (status["server_id"], status["state"]) == (server.uuid, "running")
    assert status["max_concurrent"] == 2
    assert graphs.add.name in status["handlers"]

    def handled() -> int:
        counts = json.loads(get(f"{address}/status")[1])["handled"]
        return sum(count["handled"] for count in counts)

    # The pool children write their counts at the interval of heartbeats.
    until(lambda: handled() == graphs.TASKS, "the counts of the pool children")
    assert "flowengine_server_up{" in get(f"{address}/metrics")[1]
