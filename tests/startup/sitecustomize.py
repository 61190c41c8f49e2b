"""Imported by Python when a process of a test begins: it collects no garbage while it imports.

Its modules are half a million objects. The collector would scan them many times, and once more at
the exit: a third of the processor time of a worker's start and end, of which tests have hundreds.
"""

import atexit
import gc

gc.set_threshold(50_000)
atexit.register(gc.freeze)
