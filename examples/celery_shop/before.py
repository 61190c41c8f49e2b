"""A shop on Celery: a route, a bound task, automatic retries, and a chord.

    celery -A before worker -Q celery,payments
    python -c "import before; print(before.place_order('ada', ['kettle', 'cup']).get(timeout=60))"

An order exists only as messages and results in Redis. `after.py` is the same project with durable
orders.
"""

import os
from pathlib import Path
from typing import Any

from celery import Celery, chord
from celery.result import AsyncResult

REDIS = os.environ.get("SHOP_REDIS", "redis://localhost:6379")
PRICES = {"kettle": 2450, "cup": 600}

app = Celery("shop", broker=f"{REDIS}/0", backend=f"{REDIS}/1")
app.conf.update(
    task_routes={"*.charge": {"queue": "payments"}},
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
)


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


def place_order(customer: str, goods: list[str]) -> AsyncResult[str]:
    total = chord([price.s(item) for item in goods], add_up.s())
    return (total | charge.s(customer) | send_mail.s()).apply_async()
