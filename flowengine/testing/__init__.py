"""For the tests of those who use flowengine: whole runs in one process, under your control.

`run_program` runs a program against handlers and tells the outcome. `Flow` runs decorated
functions step by step, with a clock that the test moves.
"""

from flowengine.testing.flow import Clock, Flow, FlowWorker
from flowengine.testing.program_runner import NoAnswer, Outcome, run_program

__all__ = ["Clock", "Flow", "FlowWorker", "NoAnswer", "Outcome", "run_program"]
