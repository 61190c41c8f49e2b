"""A model does steps of a workflow: it calls tools, and gives results that fit the declaration.

    python examples/claude_agent.py

The answers are scripted, so that it runs without a network. With a key in ANTHROPIC_API_KEY and
`pip install 'flowengine[anthropic]'`, name a model instead: ClaudeAgentRunner(…, model="claude-…").
"""

from typing import Any

from flowengine.afl import compile_text
from flowengine.models import ModelRequest, ScriptedModel, calling
from flowengine.sdk import ClaudeAgentRunner, ToolRegistry

PROGRAM = compile_text("""
namespace support {
  schema Verdict { refund: Long, reason: String }
  event facet FindOrder(customer: String) => (item: String, cents: Long)
  event facet Settle(complaint: String, customer: String) => (verdict: Verdict) prompt {
    system "You settle complaints of a shop. Be fair."
    template "{customer} writes: {complaint}"
  }
  event facet Refund(customer: String, cents: Long) => (receipt: String)

  workflow Complaint(customer: String, text: String) => (receipt: String) andThen {
    settled = Settle(complaint = $.text, customer = $.customer)
    paid = Refund(customer = $.customer, cents = settled.verdict.refund)
    yield Complaint(receipt = paid.receipt)
  }
}
""")

tools = ToolRegistry()


@tools.register("support.FindOrder")  # no step of the workflow: a tool of the model
def find_order(payload: dict[str, Any]) -> dict[str, Any]:
    """Find the last order of a customer."""
    print(f"the model asks for the order of {payload['customer']}")
    return {"item": "kettle", "cents": 4200}


@tools.register("support.Refund")  # a step of the workflow
def refund(payload: dict[str, Any]) -> dict[str, Any]:
    """Pay money back."""
    return {"receipt": f"{payload['cents']} cents for {payload['customer']}"}


def answer(request: ModelRequest) -> Any:
    """Stand in for the model: look the order up, then decide."""
    if request.messages[-1].role == "user":
        return calling("support__FindOrder", customer="ada")
    return calling("submit_result", verdict={"refund": 4200, "reason": "it leaks"})


if __name__ == "__main__":
    with ClaudeAgentRunner.connect(
        "sqlite:///flowengine.db", tools, ScriptedModel(answer), tools=["support.FindOrder"]
    ) as runner:
        result = runner.run(PROGRAM, {"customer": "ada", "text": "The kettle leaks."})
        print(result.status, result.outputs)
        steps = runner.engine.steps(result.workflow_id)
        (settled,) = (step for step in steps if step.path.endswith("settled"))
        print("tokens:", settled.progress)
