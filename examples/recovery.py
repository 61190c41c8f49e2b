"""Catch the error of a step and clean up: `attempt`.

    python examples/recovery.py

A retry repeats a step that may succeed next time. `attempt` handles a step that failed
permanently: use an alternative, compensate, and release resources.
"""

from flowengine import Retry, RunFailed, attempt, concat, event_facet, workflow

TABLES = {"window": "free", "corner": "free"}


class CardRefused(Exception):
    """The bank refuses the card; a retry would not help."""


@event_facet
def reserve(table: str) -> str:
    TABLES[table] = "reserved"
    return table


@event_facet
def release(table: str) -> None:
    TABLES[table] = "free"


@event_facet(retry=Retry(attempts=2, first_wait=0.05))
def charge(card: str) -> str:
    if card == "empty":
        raise CardRefused("no money left")
    if card == "offline":
        raise ConnectionError("the bank does not answer")
    if card == "forged":
        raise ValueError("this is no card")
    return f"receipt for {card}"


@event_facet
def write_down(what: str) -> str:
    return f"to be paid in cash ({what})"


@event_facet
def cook(paid: str) -> str:
    return f"dinner, {paid}"


@workflow
def dinner(table: str, card: str) -> str:
    reserved = reserve(table)
    paid = attempt(
        lambda: charge(card),
        catch={
            CardRefused: lambda error: write_down(error.message),
            ConnectionError: lambda error: write_down(concat(error.type, " at ", error.path)),
        },
        name="payment",
    )
    return attempt(lambda: cook(paid), always=lambda: release(reserved))


if __name__ == "__main__":
    for card in ("visa", "empty", "offline"):
        print(dinner.start("window", card).result(timeout=60))
    try:
        dinner.start("corner", "forged").result(timeout=60)
    except RunFailed as failed:
        print(f"{failed.path}: {failed.error_type}: {failed.message}")
