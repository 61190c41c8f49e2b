"""The example of FastAPI: a web process whose runs survive its death."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.celery_nodes.fleet import ROOT, clean_environment, until
from tests.celery_nodes.processes import GuardedProcess

ORDER = {"number": "A-7", "customer": "ada", "cents": 1200}


class Shop(GuardedProcess):
    """The web process; a restart may have another speed of the bank, and another port."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            ["uvicorn", "--app-dir", str(ROOT / "examples"), "--port", "0", "fastapi_shop:app"],
            name="shop",
            directory=directory,
            environment=clean_environment(),
            ready_prompt="Uvicorn running on",
        )

    def serve(self, bank_seconds: float) -> httpx2.Client:
        self.environment["SHOP_BANK_SECONDS"] = str(bank_seconds)
        self.start()
        url = re.search(r"running on (\S+)", self.recent_log())
        assert url
        return httpx2.Client(base_url=url[1], timeout=60)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.stop()


def test_a_killed_web_process_loses_no_run_and_waiting_blocks_no_request(shop: Shop) -> None:
    with shop.serve(bank_seconds=3600) as client, ThreadPoolExecutor(1) as pool:
        run = client.post("/orders", json=ORDER).json()["run"]
        assert client.post("/orders", json=ORDER).json() == {"run": run}, "one run for an order"
        waiting = pool.submit(client.get, f"/orders/{run}/receipt?wait=600")
        running = {"state": "RUNNING", "waits_for": ["fulfil.charge"], "error": None}
        until(lambda: client.get(f"/orders/{run}").json() == running)
        assert client.get(f"/orders/{run}/receipt").status_code == 503
        assert client.get("/orders/0").status_code == 404
        shop.kill()
        assert isinstance(waiting.exception(60), httpx2.TransportError)

    with shop.serve(bank_seconds=0) as client:
        receipt = client.get(f"/orders/{run}/receipt?wait=60").json()
        assert re.fullmatch(r"mail to ada with receipt-1200-\w{6}", receipt)
        assert client.get(f"/orders/{run}").json()["state"] == "COMPLETED"

        refused = client.post("/orders", json={**ORDER, "number": "A-8", "customer": "mallory"})
        failed = client.get(f"/orders/{refused.json()['run']}/receipt?wait=60")
        assert (failed.status_code, failed.json()["detail"]) == (
            422,
            "PermissionError: the bank refuses",
        )
        shop.kill("SIGTERM")
        shop.wait()
        assert "Application shutdown complete" in shop.recent_log()
