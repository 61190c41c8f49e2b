"""A team: a workflow asks several agents at once, and another one joins what they found.

    python examples/agent_team.py

Each question is a step of the run, so twenty agents work at a time, a killed process loses
nothing, and `flowengine show` draws the whole team.
"""

from pydantic import BaseModel

from flowengine import agent, event_facet, foreach, instruction, workflow
from flowengine.models import Answer, ModelRequest
from flowengine.testing import ScriptedModel, calling

FACTS = {
    "tea": ["it needs fresh water", "it needs time"],
    "bread": ["it needs flour", "it needs a night"],
    "sea": ["it is never the same"],
}


class Report(BaseModel):
    topic: str
    facts: list[str]


@event_facet(task_list="io")
def look_up(topic: str) -> list[str]:
    """Look a topic up."""
    return FACTS[topic]


def research(request: ModelRequest) -> Answer:
    topic = request.messages[1].text.removeprefix("Find out about: ")
    last = request.messages[-1]
    if last.role == "user":
        return calling("look_up", topic=topic)
    return calling("submit_result", topic=topic, facts=FACTS[topic])


@agent(model=ScriptedModel(research), tools=[look_up])
def researcher(topic: str) -> Report:
    """You find facts about one topic."""
    return instruction(f"Find out about: {topic}")


def write(request: ModelRequest) -> str:
    return f"An essay of {request.messages[-1].text.count('it ')} facts."


@agent(model=ScriptedModel(write))
def editor(reports: list[Report]) -> str:
    """You write one essay from the reports of your team."""
    return "\n".join(f"{report.topic}: {', '.join(report.facts)}" for report in reports)


@workflow
def essay(topics: list[str]) -> str:
    reports = foreach(topics, lambda topic: researcher(topic), limit=20)
    return editor(reports)


if __name__ == "__main__":
    run = essay.start(list(FACTS))
    print(run.result(timeout=60))
    asked = [step for step in run.steps() if step.facet.endswith("researcher")]
    print(f"{len(asked)} agents were asked, and the run is {run.info().state}")
