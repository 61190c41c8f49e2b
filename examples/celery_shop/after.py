"""The shop of `before.py` with durable orders: no task and no setting of Celery has changed.

    flowengine -A after db upgrade
    celery -A after worker -Q celery,payments,flowengine --beat
    python -c "import after; print(after.place_order('ada', ['kettle', 'cup']).result(timeout=60))"

Kill the worker at any moment: the next one continues each order after its last finished step.
"""

import os
from pathlib import Path
from typing import Any

from celery import Celery

from flowengine import EventFacet, RunHandle, event_facet, foreach, workflow
from flowengine.assembly import FlowEngine

REDIS = os.environ.get("SHOP_REDIS", "redis://localhost:6379")
PRICES = {"kettle": 2450, "cup": 600}

app = Celery("shop", broker=f"{REDIS}/0", backend=f"{REDIS}/1")
app.conf.update(
    task_routes={"*.charge": {"queue": "payments"}},
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
)
FlowEngine(app)


@app.task
def price(item: str) -> int:
    return PRICES[item]


@app.task
def add_up(prices: list[int]) -> int:
    return sum(prices)


@app.task(bind=True, autoretry_for=(ConnectionError,), max_retries=3, default_retry_delay=1)
def charge(self: Any, cents: int, customer: str) -> str:
    """Ask the bank, whose line is busy at the first call for a customer."""
    called = Path(f"{customer}.called")
    if not called.exists():
        called.touch()
        raise ConnectionError("the line is busy")
    return f"{customer} paid {cents} ({self.name.rpartition('.')[2]})"


@app.task
def send_mail(receipt: str) -> str:
    return f"mail: {receipt}"


price_of: EventFacet[[str], int] = event_facet(price)
sum_of: EventFacet[[list[int]], int] = event_facet(add_up)
payment: EventFacet[[int, str], str] = event_facet(charge)
mail: EventFacet[[str], str] = event_facet(send_mail)


@workflow
def order(customer: str, goods: list[str]) -> str:
    total = sum_of(foreach(goods, price_of))
    return mail(payment(total, customer))


def place_order(customer: str, goods: list[str]) -> RunHandle[str]:
    return order.start(customer, goods)
