"""A clerk settles complaints; before it pays money back, a person decides.

    python examples/clerk.py

A scripted model answers here. With a real one, `model=Anthropic("claude-…")`, nothing else changes.
Kill the process while it waits: the next one with the same keys continues the same turns.
"""

import time

from pydantic import BaseModel

from flowengine import Budget, Retry, TurnHandle, agent, event_facet, instruction, tool
from flowengine.models import Answer, ModelRequest
from flowengine.testing import ScriptedModel, calling

ARCHIVE = {"kettle": "kettles of 2025 leak: 42 euros each", "teapot": "nothing about teapots"}


class Verdict(BaseModel):
    refunded: bool
    reason: str


@event_facet(task_list="io", retry=Retry(attempts=3), timeout=30)
def search(query: str) -> str:
    """Search the archive of complaints."""
    return ARCHIVE[query]


@event_facet
def refund(customer: str, cents: int) -> str:
    """Pay money back to a customer."""
    return f"{customer} got {cents} cents"


def script(request: ModelRequest) -> Answer:
    """Search, ask for a refund, and deliver what came of it."""
    last = request.messages[-1]
    product = "kettle" if "kettle" in str(request.messages) else "teapot"
    if last.role == "user":
        return calling("search", query=product)
    heard = last.results[0].content
    if "leak: 42 euros" in heard:
        return calling("refund", customer="ada", cents=4200)
    return calling("submit_result", refunded="got" in heard, reason=heard)


@agent(
    model=ScriptedModel(script),
    tools=[search, tool(refund, approval=True)],
    budget=Budget(steps=8, tokens=200_000, seconds=600),
)
def clerk(ticket: str) -> Verdict:
    """You settle complaints of customers. Look into the archive before you decide."""
    return instruction(f"Settle this: {ticket}")


def decide(turn: TurnHandle[Verdict], *, pay: bool) -> None:
    """Decide about the call that waits for a person, as `flowengine turn approve` does."""
    while turn.info().finished is None:
        for call in turn.calls():
            if call.is_open and call.approval == "asked" and pay:
                print(f"eva approves {call.tool}")
                turn.approve(call.id, by="eva", arguments={"customer": "ada", "cents": 2100})
                return
            if call.is_open and call.approval == "asked":
                print(f"otto rejects {call.tool}")
                turn.reject(call.id, by="otto", reason="the kettle is from 2019")
                return
        time.sleep(0.05)


if __name__ == "__main__":
    ada = clerk.at("complaints of ada")
    turn = ada.options(key="mail-17").send("My kettle leaks!")
    decide(turn, pay=True)
    print(turn.result(timeout=60).reason)

    again = ada.options(key="mail-18").send("My other kettle leaks, too!")
    decide(again, pay=False)
    print(again.result(timeout=60).reason)

    quiet = clerk.send("I do not like my teapot.")
    print(quiet.result(timeout=60).reason)
    print(f"the first mail was answered once: {ada.options(key='mail-17').send('…').duplicate}")
