"""A runner service: handlers from a registry, a workflow started by its name, status over HTTP.

    python examples/runner_service.py

Usually it is a process of its own: `flowengine runner MODULE FILE.afl`. Here it runs in a thread,
and the requests are stored beside it.
"""

import json
import threading
import urllib.request
from typing import Any

from flowengine import current_step
from flowengine.afl import compile_text
from flowengine.sdk import RunnerConfig, RunnerService, ToolRegistry

PROGRAM = compile_text("""
namespace billing {
  event facet ProcessPayment(customer: String, cents: Long) => (receipt: String)
  event facet SendMail(to: String, text: String) => (sent: Boolean)

  workflow Order(customer: String, cents: Long) => (receipt: String, sent: Boolean) andThen {
    payment = ProcessPayment(customer = $.customer, cents = $.cents)
    mail = SendMail(to = $.customer, text = payment.receipt)
    yield Order(receipt = payment.receipt, sent = mail.sent)
  }
}
""")

tools = ToolRegistry()


@tools.register("billing.ProcessPayment")
def pay(payload: dict[str, Any]) -> dict[str, Any]:
    return {"receipt": f"{payload['cents']} cents of {payload['customer']}"}


def anything(payload: dict[str, Any]) -> dict[str, Any]:
    print(f"{current_step().facet}: {payload['text']}")
    return {"sent": True}


tools.set_default_handler(anything)

if __name__ == "__main__":
    runner = RunnerService.connect("sqlite:///flowengine.db", RunnerConfig(http_port=0), tools)
    runner.add_program(PROGRAM)
    ready = threading.Event()
    thread = threading.Thread(target=runner.start, args=(ready.set,))
    thread.start()
    ready.wait(60)

    request = runner.engine.enqueue_execute("billing.Order", {"customer": "ada", "cents": 4200})
    print(request.result(timeout=60).result(timeout=60))

    with urllib.request.urlopen(f"http://127.0.0.1:{runner.http_port}/status") as answer:
        status = json.load(answer)
    print(status["state"], [count["handler"] for count in status["handled"]])
    runner.close()
    thread.join()
