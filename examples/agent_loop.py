"""A loop of 300 rounds: a workflow that calls itself until its goal is reached.

    python examples/agent_loop.py

An agent works so: it thinks, acts, observes, and decides whether to go on. Each round is a step of
its own, so a killed process continues with the round that it was in. Nobody knows the number of
rounds when the run starts.
"""

from dataclasses import dataclass

from flowengine import event_facet, when, workflow


@dataclass
class Notes:
    """The knowledge of the agent: small, because every round stores it."""

    rounds: int
    found: int


@event_facet
def act(goal: int, notes: Notes) -> Notes:
    """One round; a real agent asks a model and calls a tool here."""
    return Notes(notes.rounds + 1, notes.found + (1 if notes.rounds % 3 == 2 else 0))


@workflow
def pursue(goal: int, notes: Notes) -> Notes:
    return when(notes.found >= goal, notes, otherwise=lambda: pursue(goal, act(goal, notes)))


if __name__ == "__main__":
    run = pursue.start(100, Notes(0, 0))
    notes = run.result(timeout=120)
    print(f"{notes.found} things found in {notes.rounds} rounds")
    print(f"{sum(step.facet.endswith('act') for step in run.steps())} steps are stored")
