"""Compute values between steps, without a step: the expressions of a program.

python examples/expressions.py
"""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from pydantic import BaseModel

from flowengine import (
    and_,
    concat,
    ends_with,
    event_facet,
    is_in,
    not_,
    now,
    or_,
    starts_with,
    uuid,
    when,
    workflow,
)


class Price(NamedTuple):
    cents: int
    currency: str


class Invoice(BaseModel):
    number: UUID
    written: datetime
    to: str
    cents: int


@event_facet
def price_of(item: str) -> Price:
    return Price(cents=len(item) * 100, currency="EUR")


@event_facet
def split(address: str) -> tuple[str, str]:
    name, _, domain = address.partition("@")
    return name, domain


@event_facet
def send(invoice: Invoice) -> str:
    return f"{invoice.to}: {invoice.cents} cents, written in {invoice.written:%Y} or later"


@workflow
def bill(item: str, pieces: int, address: str) -> dict[str, object]:
    price = price_of(item)
    name, domain = split(address)  # a tuple of known length is unpacked
    total = price.cents * pieces + when(is_in(domain, ["example.org"]), 0, otherwise=490)
    is_safe = and_(not_(starts_with(name, "x-")), or_(ends_with(domain, ".org"), total < 10_000))
    invoice = Invoice.model_construct(
        number=uuid(),  # recorded: the same for every use in this run
        written=now(),
        to=concat("Dear ", name, " (", price.currency, ")"),
        cents=total,
    )
    return {"sent": send(invoice), "safe": is_safe, "half": total / 2, "odd": total % 2 == 1}


if __name__ == "__main__":
    result = bill.start("tea", 3, "ada@example.org").result(timeout=60)
    print(result)
