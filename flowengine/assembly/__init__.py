"""Assemble an engine: embedded in this process, or on a Celery app."""

from flowengine.assembly.embedded import Embedded, close_default_engine, default_engine
from flowengine.assembly.launcher import EngineLauncher
from flowengine.assembly.plugin import FlowEngine
from flowengine.assembly.program_files import load_program

__all__ = [
    "Embedded",
    "EngineLauncher",
    "FlowEngine",
    "close_default_engine",
    "default_engine",
    "load_program",
]
