"""Test helpers for users: whole runs in one process, controlled by the test.

`run_program` runs a program against handlers and returns the outcome. `Flow` runs decorated
functions step by step, with a clock that the test moves. `replay` evaluates an exported run again.
`ScriptedModel` gives agents their answers, without a network.
"""

from flowengine.models.scripted import ScriptedModel, calling
from flowengine.testing.flow import Clock, Flow, FlowWorker
from flowengine.testing.program_runner import NoAnswer, Outcome, run_program
from flowengine.testing.replay import Replay, replay

__all__ = [
    "Clock",
    "Flow",
    "FlowWorker",
    "NoAnswer",
    "Outcome",
    "Replay",
    "ScriptedModel",
    "calling",
    "replay",
    "run_program",
]
