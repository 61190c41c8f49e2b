"""An agent as a process: its callback says that it has begun, and waits until it may go on."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from flowengine.sdk import AgentPoller, AgentPollerConfig

TRACES = Path(os.environ["TRACES"])


def work(payload: dict[str, Any]) -> dict[str, Any]:
    (TRACES / f"begun-{os.getpid()}").touch()
    while not (TRACES / "go").exists():
        time.sleep(0.01)
    return {"y": os.getpid()}


if __name__ == "__main__":
    config = AgentPollerConfig(heartbeat_interval_ms=1000, poll_interval_ms=200)
    with AgentPoller.connect(config=config) as poller:
        poller.register("Work", work)
        signal.signal(signal.SIGTERM, lambda *_: poller.stop())
        print(f"server {poller.server_id}", flush=True)
        poller.start()
    print("stopped", flush=True)
