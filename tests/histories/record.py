"""Record the scenarios with this version: `.venv/bin/python -m tests.histories.record`.

Files that exist are not written again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import flowengine
from flowengine.engine import Run
from flowengine.store.migrations import HEAD
from flowengine.testing import Flow
from tests.histories import snapshots
from tests.histories.scenarios import MIDDLES, finish

FOLDER = Path(__file__).parent


def end_of(flow: Flow, run: Run[Any]) -> dict[str, Any]:
    """Return the end of a run, which is the same with every version."""
    info = run.info()
    return {
        "state": info.state,
        "outputs": info.outputs,
        "error": info.error and {key: info.error[key] for key in ("type", "path")},
        "steps": flow.paths(run),
    }


def record(name: str) -> dict[str, Any]:
    with Flow() as flow:
        run = MIDDLES[name](flow)
        middle = {
            "now": flow.clock.now,
            "dead": sorted(flow._dead),
            "rows": snapshots.take(flow.database),
        }
        assert not run.info().is_final, name
        finish(flow, run)
        assert run.info().is_final, name
        return {
            "version": flowengine.__version__,
            "schema": HEAD,
            "run": run.id,
            "middle": middle,
            "end": {"now": flow.clock.now, "dead": [], "rows": snapshots.take(flow.database)},
            "expected": end_of(flow, run),
        }


def main() -> None:
    folder = FOLDER / flowengine.__version__
    folder.mkdir(exist_ok=True)
    for name in MIDDLES:
        file = folder / f"{name}.json"
        if not file.exists():
            text = json.dumps(record(name), separators=(",", ":"))
            # Tracebacks name files: relative to the checkout, wherever it is.
            file.write_text(text.replace(f"{FOLDER.parent.parent}/", "") + "\n")
            print(f"{file.relative_to(FOLDER)}: {file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
