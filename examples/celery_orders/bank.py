"""A bank, a stock and a mail server, as files of the working directory."""

import time
from pathlib import Path


class CardDeclined(Exception):
    pass


def book(key: str, customer: str, cents: int) -> str:
    """Charge a card once for each key, as payment services do.

    Customers behave: grace's line is busy twice, sloane's bank books and then says nothing for a
    minute, and mallory's card is declined.
    """
    if customer == "mallory":
        raise CardDeclined(f"the card of {customer} is declined")
    calls = note("calls.txt", key)
    if customer == "grace" and calls < 3:
        raise ConnectionError("the line is busy")
    if not receipt(key):
        note("charges.txt", f"{key} {customer} {cents}")
    if customer == "sloane":
        time.sleep(60)
    return receipt(key)


def receipt(key: str) -> str:
    """Return the receipt of a charge; empty: there was none."""
    charges = lines("charges.txt")
    return next((f"{c} paid {n}" for k, c, n in map(str.split, charges) if k == key), "")


def note(file: str, line: str) -> int:
    """Write a line; return how often the file has it."""
    with Path(file).open("a") as opened:
        opened.write(f"{line}\n")
    return lines(file).count(line)


def lines(file: str) -> list[str]:
    return Path(file).read_text().splitlines() if Path(file).exists() else []
