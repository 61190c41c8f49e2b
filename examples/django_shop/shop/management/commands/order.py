from typing import Any

from django.core.management.base import BaseCommand

from shop import orders


class Command(BaseCommand):
    help = "Place an order and wait until it is fulfilled."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("customer")
        parser.add_argument("cents", type=int)

    def handle(self, *, customer: str, cents: int, **_: Any) -> None:
        _order, run = orders.place(customer, cents)
        self.stdout.write(run.result(timeout=60))
