"""Programs of canvases: compositions of tasks as plain values, read from Celery's signatures."""

from flowengine.authoring.canvas.parts import (
    ChainPart,
    Errback,
    GroupPart,
    MapPart,
    Part,
    TaskPart,
)
from flowengine.authoring.canvas.shapes import shape_of
from flowengine.authoring.canvas.workflows import workflow_of

__all__ = [
    "ChainPart",
    "Errback",
    "GroupPart",
    "MapPart",
    "Part",
    "TaskPart",
    "shape_of",
    "workflow_of",
]
