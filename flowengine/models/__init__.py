"""Models behind one small protocol: messages, tools, usage, streams, errors.

It knows neither runs nor Celery. The packages of providers are extras, imported by the first
request.
"""

from flowengine.models.anthropic import Anthropic
from flowengine.models.messages import (
    Answer,
    Message,
    Opaque,
    Part,
    StopReason,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
)
from flowengine.models.openai import OpenAI
from flowengine.models.protocol import Chunk, Model, ModelRequest
from flowengine.models.retries import ModelRetry
from flowengine.models.scripted import ScriptedModel, calling

__all__ = [
    "Answer",
    "Anthropic",
    "Chunk",
    "Message",
    "Model",
    "ModelRequest",
    "ModelRetry",
    "Opaque",
    "OpenAI",
    "Part",
    "ScriptedModel",
    "StopReason",
    "Text",
    "Tool",
    "ToolCall",
    "ToolResult",
    "Usage",
    "calling",
]
