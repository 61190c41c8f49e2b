from django.db import transaction

from flowengine import RunHandle
from shop.models import Order
from shop.workflows import fulfil


def place(customer: str, cents: int) -> tuple[Order, RunHandle[str]]:
    """Store an order and start its workflow: both are committed, or neither is."""
    with transaction.atomic():
        order = Order.objects.create(customer=customer, cents=cents)
        run = fulfil.start(order.pk)
        order.run = run.id
        order.save()
        if cents <= 0:
            raise ValueError("an order costs something")
    return order, run
