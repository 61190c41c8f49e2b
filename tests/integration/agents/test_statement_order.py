"""The order of the statements of a turn: the protocol prescribes it for readers and writers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from tests.integration.agents.clerks import Office, calls, clerk, plan
from tests.integration.engines import watched

pytestmark = pytest.mark.each_database

_TABLE = re.compile(r"(?:INTO|UPDATE|FROM|JOIN) flowengine_(\w+)")
_WRITES = re.compile(r"(INSERT|UPDATE)(?: OR IGNORE)?(?: INTO)? flowengine_(\w+)")


@contextmanager
def noted(desk: Office) -> Iterator[list[str]]:
    """Note the verb and the tables of each statement; of a commit, of each part of it."""
    found: list[str] = []

    def note(sql: str, _given: Any = None) -> None:
        if sql.startswith("WITH") and (written := _WRITES.findall(sql)):
            found.extend(f"{verb} {table}" for verb, table in written)
        else:
            verb = "SELECT" if sql.startswith("WITH") else sql.split()[0]
            found.extend(f"{verb} {table}" for table in _TABLE.findall(sql))

    def listen(_c: Any, _cursor: Any, sql: str, *_: Any) -> None:
        note(sql)

    engine = desk.engine.database.engine
    event.listen(engine, "before_cursor_execute", listen)
    with watched(desk.engine, note):
        yield found
    event.remove(engine, "before_cursor_execute", listen)


def in_order(found: list[str], *wanted: str) -> bool:
    """Whether the first ones of these statements come in this order."""
    places = [found.index(each) for each in wanted]
    return places == sorted(places)


def test_cards_are_written_before_the_state_and_the_state_before_the_events(desk: Office) -> None:
    plan.reset({"task": [calls("search"), "done"]})
    turn = clerk.send("task")
    with noted(desk) as found:
        desk.until_suspended(turn)
    commit = found[found.index("INSERT card") :]
    order = ("INSERT card", "INSERT box_card", "UPDATE agent_state_head", "INSERT agent_event")
    assert in_order(commit, *order), commit


def test_a_model_call_reads_the_head_then_the_profile_then_the_boxes(desk: Office) -> None:
    plan.reset({"task": ["done"]})
    turn = clerk.send("task")
    desk.agents.profiles._known.clear()  # another process than the one that has sent it
    with noted(desk) as found:
        desk.run_model(turn)
    assert in_order(found, "SELECT agent_state_head", "SELECT card", "SELECT box_card"), found
