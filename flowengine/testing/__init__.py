"""For the tests of those who use flowengine: whole runs in one process, under your control.

`run_program` runs a program against handlers and tells the outcome. `Flow` runs decorated
functions step by step, with a clock that the test moves.
"""

from flowengine.testing.programs import Outcome, run_program

__all__ = ["Outcome", "run_program"]
