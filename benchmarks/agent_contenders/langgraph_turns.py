"""Turns as a LangGraph graph, each step durable in PostgreSQL before the next (durability sync).

Given: the database, the first turn's label, and the number of turns and threads.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from benchmarks.agent_flows import model, tool


class State(TypedDict):
    turn: str
    results: list[int]
    text: str


def ask(state: State) -> dict[str, Any]:
    return {"text": model(state["turn"], len(state["results"])) or ""}


def call(state: State) -> dict[str, Any]:
    return {"results": [*state["results"], tool(len(state["results"]))]}


def main(database: str, label: str, turns: int, threads: int) -> None:
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    with ConnectionPool(database, min_size=threads, max_size=threads, kwargs=options) as pool:
        saver = PostgresSaver(pool)
        saver.setup()
        graph = StateGraph(State)
        graph.add_node("ask", ask)
        graph.add_node("call", call)
        graph.add_edge(START, "ask")
        graph.add_conditional_edges("ask", lambda state: END if state["text"] else "call")
        graph.add_edge("call", "ask")
        compiled = graph.compile(checkpointer=saver)

        def run(number: int) -> None:
            turn = f"{label}{number}"
            state = {"turn": turn, "results": [], "text": ""}
            compiled.invoke(state, {"configurable": {"thread_id": turn}}, durability="sync")

        print("ready", flush=True)
        sys.stdin.readline()
        with ThreadPoolExecutor(threads) as workers:
            list(workers.map(run, range(turns)))
        print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
