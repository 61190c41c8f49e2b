"""Runs the chat of the examples with a model that answers while there is a file `go`."""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flowengine.models import ModelRequest, ScriptedModel

_stream = ScriptedModel.stream


def _held(model: ScriptedModel, request: ModelRequest) -> Iterator[Any]:
    with Path("asked").open("a") as asked:
        asked.write(f"{request.messages[-1].text}\n")
    while not Path("go").exists():
        time.sleep(0.01)
    yield from _stream(model, request)


if __name__ == "__main__":
    ScriptedModel.stream = _held  # type: ignore[method-assign]
    example = sys.argv.pop(1)
    runpy.run_path(example, run_name="__main__")
