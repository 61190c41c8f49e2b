"""An agent without a broker: it asks the database for tasks, and runs callbacks for them.

    python examples/agent_poller.py

The workflow is AFL text; the code of its event facets is in the agent. Here the agent runs in a
thread, and the run is started beside it. Usually it is a process of its own, on a machine that
reaches the database and nothing else.
"""

import asyncio
import threading
from typing import Any

from flowengine import RunFailed
from flowengine.afl import compile_text
from flowengine.sdk import AgentPoller, AgentPollerConfig

PROGRAM = compile_text("""
namespace billing {
  event facet ProcessPayment(customer: String, cents: Long) => (receipt: String, paid: Long)
  event facet SendMail(to: String, text: String) => (sent: Boolean)

  workflow Order(customer: String, cents: Long) => (receipt: String, sent: Boolean) andThen {
    payment = ProcessPayment(customer = $.customer, cents = $.cents)
    mail = SendMail(to = $.customer, text = "thanks for " ++ payment.paid)
    yield Order(receipt = payment.receipt, sent = mail.sent)
  }
}
""")

poller = AgentPoller.connect("sqlite:///flowengine.db", AgentPollerConfig(service_name="payer"))


@poller.register("billing.ProcessPayment")
def pay(payload: dict[str, Any]) -> dict[str, Any]:
    if payload["cents"] <= 0:
        raise ValueError(f"{payload['cents']} cents cannot be paid")
    return {"receipt": f"receipt for {payload['customer']}", "paid": payload["cents"]}


@poller.register("SendMail")  # the short name: of any namespace
async def send_mail(payload: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0.05)
    print(f"mail to {payload['to']}: {payload['text']}")
    return {"sent": True}


if __name__ == "__main__":
    agent = threading.Thread(target=poller.start)
    agent.start()
    run = poller.engine.start(PROGRAM, "billing.Order", {"customer": "ada", "cents": 4200})
    print(run.result(timeout=60))
    failed = poller.engine.start(PROGRAM, "billing.Order", {"customer": "bob", "cents": 0})
    try:
        failed.result(timeout=60)
    except RunFailed as problem:
        print(f"failed: {problem.message}")
    poller.close()
    agent.join()
