"""Take an order: composed facets, a retry, and a failure with its reason.

    python examples/order_pipeline.py

`@facet` groups steps under one name and is evaluated by the engine; only `@event_facet`
functions run on workers. If a step fails, its dependents are skipped and the rest continues.
"""

from dataclasses import dataclass

from flowengine import Retry, RunFailed, current_step, event_facet, facet, workflow

STOCK = {"kettle": 3, "teapot": 0}
CHARGED: dict[str, int] = {}  # the records of the payment service, by idempotency key


@event_facet
def reserve(item: str, pieces: int) -> int:
    """Reserve pieces from the stock; return the price in cents."""
    if STOCK.get(item, 0) < pieces:
        raise LookupError(f"only {STOCK.get(item, 0)} of {item} left")
    return pieces * 2_450


@event_facet(retry=Retry(attempts=4, first_wait=0.1), timeout=20)
def charge(customer: str, cents: int) -> str:
    """Charge a customer. A second try of the same step cannot charge twice."""
    step = current_step()
    if step.try_number == 1:
        raise ConnectionError("the payment service did not answer")
    CHARGED.setdefault(step.idempotency_key, cents)
    return f"receipt-{step.idempotency_key[:6]}"


@event_facet(task_list="mail")
def send_mail(to: str, subject: str) -> bool:
    print(f"  mail to {to}: {subject}")
    return True


@dataclass
class Payment:
    receipt: str
    cents: int


@facet
def pay(customer: str, cents: int, shipping: int) -> Payment:
    """Charge the goods and the shipping together."""
    total = cents + shipping
    receipt = charge(customer, total)
    return Payment(receipt, total)


@workflow
def take_order(customer: str, item: str, pieces: int = 1) -> str:
    price = reserve(item, pieces)
    paid = pay(customer, price, shipping=490)
    send_mail.after()(customer, "We have your order")  # does not wait for the payment
    send_mail.named("send_receipt")(customer, paid.receipt)
    return paid.receipt


if __name__ == "__main__":
    run = take_order.start("ada@example.org", "kettle", pieces=2)
    print(f"run {run.id}: {run.result(timeout=60)}")

    run = take_order.start("bob@example.org", "teapot")
    try:
        run.result(timeout=60)
    except RunFailed as failed:
        print(f"run {run.id}: {failed.path}: {failed.message}")
