"""Wait for a person, and for a while: `wait_for` and `sleep`.

    python examples/approval.py

A run that waits is some rows in the database: no worker, no message and no thread waits with it.
"""

from datetime import timedelta

from pydantic import BaseModel

from flowengine import (
    AnswerRefused,
    WaitTimedOut,
    attempt,
    event_facet,
    sleep,
    wait_for,
    when,
    workflow,
)


class Approval(BaseModel):
    granted: bool
    note: str = ""


@event_facet
def write_contract(customer: str) -> str:
    return f"contract with {customer}"


@event_facet
def sign(contract: str, note: str) -> str:
    return f"{contract}, signed ({note})"


@event_facet
def put_aside(contract: str) -> str:
    return f"{contract}, put aside"


@workflow
def onboarding(customer: str) -> str:
    draft = write_contract(customer)
    answer = wait_for("approval", Approval, timeout=timedelta(days=3), after=draft)
    rested = sleep(0.1).after(answer)  # people change their minds
    return when(
        answer.granted,
        lambda: sign.after(rested)(draft, answer.note),
        otherwise=lambda: put_aside(draft),
    )


@workflow
def impatient(customer: str) -> str:
    return attempt(
        lambda: wait_for("approval", Approval, timeout=0.1).note,
        catch={WaitTimedOut: lambda error: put_aside(customer)},
    )


if __name__ == "__main__":
    run = onboarding.start("Ada")
    run.send("approval", Approval(granted=True, note="welcome"), actor="eva")
    try:
        run.send("approval", Approval(granted=False), actor="otto")
    except AnswerRefused:
        print("eva was faster than otto")
    print(run.result(timeout=60))
    refused_run = onboarding.start("Bob")
    refused_run.send("approval", {"granted": False}, actor="eva")
    print(refused_run.result(timeout=60))
    print(impatient.start("Carl").result(timeout=60))
