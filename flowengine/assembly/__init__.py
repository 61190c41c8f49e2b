"""Put an engine together: the embedded default."""

from flowengine.assembly.default import (
    EngineLauncher,
    close_default_engine,
    default_engine,
    default_launcher,
)
from flowengine.assembly.embedded import Embedded

__all__ = [
    "Embedded",
    "EngineLauncher",
    "close_default_engine",
    "default_engine",
    "default_launcher",
]
