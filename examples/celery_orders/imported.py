"""The canvas of `before.py` as durable runs: it is imported as it is, and so are its tasks.

    flowengine -A imported db upgrade
    celery -A imported worker -Q celery,payments,flowengine --beat

The handle of an order is still an `AsyncResult`, and its id is the number of the order.
"""

import before
from celery.result import AsyncResult

from flowengine import Rate, durable, event_facet
from flowengine.assembly import FlowEngine

app = before.app
FlowEngine(app)

event_facet(rate=Rate("orders.pack", 50, per=1))(before.pack)
for task in (
    *(before.check_order, before.reserve, before.price_item, before.add_up, before.charge_card),
    *(before.ship, before.make_invoice, before.finish, before.send_mail, before.tell_failure),
):
    event_facet(task)


def place_order(order: str, customer: str, goods: list[str]) -> AsyncResult[str]:
    canvas = before.order_canvas(order, customer, goods).on_error(before.tell_failure.s())
    return durable(canvas, name="orders.order").apply_async(task_id=order)
