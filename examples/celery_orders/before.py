"""Orders on Celery: chains, chords, retries, limits, a base class, signals, a beat and Sentry.

    celery -A before worker -Q celery,payments --beat

An order exists only as messages and results in Redis.
"""

import os
from typing import Any

import sentry_sdk
from bank import book, lines, note, receipt
from celery import Celery, Task, chain, chord, signals
from celery.exceptions import SoftTimeLimitExceeded
from celery.result import AsyncResult
from sentry_sdk.integrations.celery import CeleryIntegration

REDIS = os.environ.get("SHOP_REDIS", "redis://localhost:6379")
SOFT_LIMIT = int(os.environ.get("SHOP_SOFT_LIMIT", "1"))
PRICES = {"kettle": 2450, "cup": 600}

sentry_sdk.init(dsn=os.environ.get("SENTRY_DSN"), integrations=[CeleryIntegration()])
app = Celery("orders", broker=f"{REDIS}/0", backend=f"{REDIS}/1")
app.conf.update(
    task_routes={"*.charge_card": {"queue": "payments"}, "*.refund": {"queue": "payments"}},
    beat_schedule={"takings": {"task": "orders.report_takings", "schedule": 3600.0}},
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    task_allow_error_cb_on_chord_header=True,
)


class Audited(Task):  # type: ignore[type-arg]
    """Writes down each payment that was tried."""

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        note("audit.txt", f"begun {self.name} of {args[1]}")

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        note("audit.txt", f"again {self.name} of {args[1]}: {exc}")

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        note("audit.txt", f"failed {self.name} of {args[1]}: {exc}")


@signals.task_failure.connect
def note_failure(sender: Any, exception: BaseException, **_: Any) -> None:
    note("failures.txt", f"{sender.name} {type(exception).__name__}")


# --- the stock ---


@app.task(name="orders.check_order")
def check_order(order: str, goods: list[str]) -> int:
    if unknown := [item for item in goods if item not in PRICES]:
        raise ValueError(f"order {order}: nobody sells {', '.join(unknown)}")
    return len(goods)


@app.task(bind=True, name="orders.reserve", max_retries=2)
def reserve(self: Any, order: str, goods: list[str]) -> str:
    """The stock is locked at the first try of an order."""
    if not self.request.retries and note("locks.txt", order) == 1:
        raise self.retry(exc=BlockingIOError("the stock is locked"), countdown=0.2)
    note("reserved.txt", f"{order} {len(goods)}")
    return order


@app.task(name="orders.price_item")
def price_item(item: str) -> int:
    return PRICES[item]


@app.task(name="orders.add_up")
def add_up(prices: list[int]) -> int:
    return sum(prices)


# --- payments ---


@app.task(
    bind=True,
    base=Audited,
    name="orders.charge_card",
    max_retries=4,
    soft_time_limit=SOFT_LIMIT,
    time_limit=30,
)
def charge_card(self: Any, cents: int, order: str, customer: str) -> str:
    """Charge once, whatever happens: the id of the task is the key at the bank."""
    try:
        return book(self.request.id, customer, cents)
    except ConnectionError as busy:
        raise self.retry(exc=busy, countdown=0.2) from busy
    except SoftTimeLimitExceeded:  # it may have booked
        return receipt(self.request.id) or "unpaid"


@app.task(name="orders.refund", acks_late=True)
def refund(order: str, customer: str) -> str:
    note("refunds.txt", f"{order} {customer}")
    return f"{customer} has {order} back"


@app.task(name="orders.book_revenue", ignore_result=True)
def book_revenue(paid: str) -> None:
    note("revenue.txt", paid)


# --- the parcel and the mail ---


@app.task(name="orders.pack", rate_limit="50/s")
def pack(order: str, goods: list[str]) -> str:
    return f"{order}: {len(goods)} things"


@app.task(
    name="orders.ship",
    autoretry_for=(ConnectionError,),
    retry_backoff=True,
    retry_backoff_max=2,
    max_retries=3,
)
def ship(parcel: str) -> str:
    """The carrier hangs up at the first call for a parcel."""
    if note("carrier.txt", parcel) == 1:
        raise ConnectionError("the carrier hangs up")
    return f"shipped {parcel}"


@app.task(name="orders.make_invoice")
def make_invoice(paid: str, order: str) -> str:
    return f"invoice {order}: {paid}"


@app.task(name="orders.finish")
def finish(papers: list[str], order: str) -> str:
    note("finished.txt", order)
    return "; ".join(papers)


@app.task(name="orders.send_mail", expires=3600)
def send_mail(text: str, customer: str) -> str:
    note("mails.txt", f"{customer}: {text}")
    return f"{customer}: {text}"


@app.task(name="orders.tell_failure")
def tell_failure(request: Any, exc: Any, traceback: Any) -> None:
    note("told.txt", str(exc))


# --- the end of the day ---


@app.task(name="orders.count_orders")
def count_orders(day: str) -> int:
    return len(lines("finished.txt"))


@app.task(name="orders.write_report")
def write_report(count: int, day: str) -> str:
    note("reports.txt", f"{count} orders")
    return f"{day}: {count} orders"


@app.task(name="orders.report_takings")
def report_takings(day: str = "today") -> AsyncResult[str]:
    return chain(count_orders.s(day), write_report.s(day)).apply_async()


# --- an order ---


def order_canvas(order: str, customer: str, goods: list[str]) -> Any:
    total = chord([price_item.si(item) for item in goods], add_up.s())
    papers = chord([make_invoice.s(order), chain(pack.si(order, goods), ship.s())], finish.s(order))
    first = check_order.si(order, goods) | reserve.si(order, goods) | total
    return first | charge_card.s(order, customer) | papers | send_mail.s(customer)


def place_order(order: str, customer: str, goods: list[str]) -> AsyncResult[str]:
    canvas = order_canvas(order, customer, goods)
    placed: AsyncResult[str] = canvas.apply_async(link_error=tell_failure.s())
    return placed
