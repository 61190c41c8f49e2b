"""An agent as a durable function: it asks a model and calls tools until the model stops.

    python examples/durable_agent.py

The loop is plain Python. Each model call and each tool call is recorded once, so a killed process
continues with the call that it was in, and pays for no call twice. The model here is scripted: a
real one is asked in the same place, in an event facet.
"""

import asyncio

from pydantic import BaseModel

from flowengine import GiveUp, StepFailed, event_facet, gather, sleep, workflow


class ToolCall(BaseModel):
    tool: str
    argument: str


class Reply(BaseModel):
    text: str = ""
    tool_calls: list[ToolCall] = []


class ToolRefused(GiveUp):
    """A tool does not do that; trying again would not help."""


#: The answers of the model, by the number of messages that it has read.
SCRIPT = {
    1: Reply(
        tool_calls=[
            ToolCall(tool="population", argument="Paris"),
            ToolCall(tool="population", argument="Oslo"),
        ]
    ),
    3: Reply(tool_calls=[ToolCall(tool="population", argument="Atlantis")]),
    4: Reply(text="Paris has three times as many people as Oslo; nobody lives in Atlantis."),
}
POPULATION = {"Paris": 2_103_000, "Oslo": 724_000}


@event_facet
def ask_model(messages: list[str]) -> Reply:
    return SCRIPT[len(messages)]


@event_facet(effects=False)  # it only reads: several of its calls are recorded together
def call_tool(call: ToolCall) -> str:
    if call.argument not in POPULATION:
        raise ToolRefused(f"{call.argument} is not a city")
    return f"{call.argument}: {POPULATION[call.argument]:,}"


@workflow(version=1)
async def research(question: str) -> str:
    messages = [question]
    while True:
        reply = await ask_model.acall(messages)
        if not reply.tool_calls:
            return reply.text
        try:
            async with asyncio.timeout(600):
                calls = [call_tool.acall(call) for call in reply.tool_calls]
                messages += await gather(*calls, limit=8)
        except StepFailed as refused:  # raised in a worker, built again from its record
            messages.append(f"refused: {refused}")
        await sleep(0.1)  # a row, not a thread


if __name__ == "__main__":
    run = research.start("Which city is larger?")
    print(run.result(timeout=60))
    calls = [step for step in run.steps() if step.path.startswith("research.research.")]
    for call in calls:
        print(f"{call.path.rpartition('.')[2]}: {call.status}")
