"""Turns as DBOS workflows of a queue: this program is the worker, or with `send` the caller.

Given: `work` and a number, or `send`, a label and a number of turns.
"""

from __future__ import annotations

import os
import sys
import time

from dbos import DBOS, DBOSClient

from benchmarks.agent_flows import model, tool

POLLING = 0.02  #: seconds; the default of one second would be most of each figure
QUEUE = "turns"


@DBOS.step()
def ask(turn: str, results: int) -> str | None:
    return model(turn, results)


@DBOS.step()
def call(number: int) -> int:
    return tool(number)


@DBOS.workflow()
def take_turn(turn: str) -> str:
    results: list[int] = []
    while (text := ask(turn, len(results))) is None:
        results.append(call(len(results)))
    return text


def work(number: str) -> None:
    url = os.environ["BENCH_DATABASE"]
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "executor_id": f"worker{number}",
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    DBOS.register_queue(QUEUE, polling_interval_sec=POLLING, worker_concurrency=8)
    print("ready", flush=True)
    sys.stdin.readline()


def send(label: str, turns: int, *, one_by_one: bool) -> None:
    client = DBOSClient(system_database_url=os.environ["BENCH_DATABASE"])
    handles = []
    for number in range(turns):
        options = {"queue_name": QUEUE, "workflow_name": "take_turn"}
        handle = client.enqueue(options, f"{label}{number}")  # type: ignore[arg-type]
        if one_by_one:
            handle.get_result(polling_interval_sec=POLLING)
            time.sleep(0.02)
        else:
            handles.append(handle)
    for handle in handles:
        handle.get_result(polling_interval_sec=POLLING)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work(sys.argv[2])
    else:
        send(sys.argv[2], int(sys.argv[3]), one_by_one=sys.argv[4] == "one")
