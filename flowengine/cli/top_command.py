"""`flowengine top`: look at a database from a terminal."""

from __future__ import annotations

from flowengine.cli.database import open_engine
from flowengine.errors import MissingExtra


def top() -> None:
    try:
        from flowengine.cli.top_app import TopApp
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "textual":
            raise
        raise MissingExtra("flowengine top", "tui", "textual") from missing
    with open_engine() as engine:
        TopApp(engine).run()
