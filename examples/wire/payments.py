"""An agent in JavaScript works for a workflow: it claims its tasks over HTTP.

    python examples/wire/payments.py        # needs Node.js 20 or later

The process that serves the wire protocol is `flowengine api` elsewhere; here it is this one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from pathlib import Path

from flowengine import load_program
from flowengine.engine import Engine
from flowengine.errors import RunFailed
from flowengine.sdk.wire.server import WireServer
from flowengine.settings import Settings
from flowengine.store import Database, ensure_schema

HERE = Path(__file__).parent


def main(directory: str) -> None:
    database = Database(f"sqlite:///{directory}/payments.db")
    ensure_schema(database, upgrade=True)
    engine = Engine(database, settings=Settings(spool_directory=directory))
    program = load_program(HERE / "billing.afl")
    with WireServer(engine, port=0) as server:
        token, _ = engine.tokens.create("node", ["claim"], task_lists=["default"])
        environment = {**os.environ, "FLOWENGINE_URL": server.url, "FLOWENGINE_TOKEN": token}
        agent = subprocess.Popen(
            ["node", HERE / "agent.mjs"], env=environment, stdout=subprocess.DEVNULL
        )
        try:
            for customer, cents in (("ada", 4200), ("grace", 0)):
                order = {"customer": customer, "cents": cents}
                run = engine.start(program, "billing.Order", order)
                try:
                    print(customer, run.result(timeout=60))
                except RunFailed as problem:
                    print(customer, problem.message)
        finally:
            agent.send_signal(signal.SIGTERM)
            agent.wait(30)
        print("the agent has deregistered:", engine.servers() == [])
    engine.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(directory)
