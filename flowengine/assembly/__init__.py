"""Assemble an engine: embedded in this process, or on a Celery app."""

from flowengine.assembly.durable_canvas import DurableCanvas, durable
from flowengine.assembly.embedded import Embedded, close_default_engine, default_engine
from flowengine.assembly.launcher import EngineLauncher
from flowengine.assembly.plugin import FlowEngine
from flowengine.assembly.program_files import load_program
from flowengine.tasks.canvas_results import DurableResult

__all__ = [
    "DurableCanvas",
    "DurableResult",
    "Embedded",
    "EngineLauncher",
    "FlowEngine",
    "close_default_engine",
    "default_engine",
    "durable",
    "load_program",
]
