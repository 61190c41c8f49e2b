"""Found by flowengine in every installed app, in web processes and in workers."""

from flowengine import Retry, current_step, event_facet, workflow
from shop.models import Order


@event_facet(retry=Retry(attempts=5))
def charge(order_id: int) -> str:
    """Ask the payment service; the key makes a second try harmless."""
    order = Order.objects.get(pk=order_id)
    return f"receipt-{order.cents}-{current_step().idempotency_key[:6]}"


@event_facet
def store_receipt(order_id: int, receipt: str) -> str:
    Order.objects.filter(pk=order_id).update(receipt=receipt)
    return receipt


@event_facet
def send_mail(order_id: int, receipt: str) -> str:
    order = Order.objects.get(pk=order_id)
    return f"mail to {order.customer} with {receipt}"


@workflow
def fulfil(order_id: int) -> str:
    receipt = store_receipt(order_id, charge(order_id))
    return send_mail(order_id, receipt)
