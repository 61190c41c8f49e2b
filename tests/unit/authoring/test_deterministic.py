"""now and uuid: steps of the run, not of the trace."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from flowengine.authoring import event_facet, now, uuid, workflow
from flowengine.errors import AuthoringError
from flowengine.program.nodes import Argument, Call, Field, Literal, StepRef
from tests.unit.authoring.compiled import block, declarations, steps, yielded


@event_facet
def work(at: datetime, id: UUID) -> int:
    return 1


@workflow
def timed() -> Any:
    done = work(now(), uuid())
    return now(after=done)


def test_now_and_uuid_are_steps() -> None:
    begin, key, worked, end = steps(block(timed))
    assert (begin.name, begin.call) == ("now", Call("flowengine.now"))
    assert (key.name, key.call) == ("uuid", Call("flowengine.uuid"))
    values = [argument.value for argument in worked.call.arguments]
    assert values == [StepRef(("now", "result")), StepRef(("uuid", "result"))]
    after = Argument("after", StepRef(("work", "result")))
    assert (end.name, end.call) == ("now_2", Call("flowengine.now", (after,)))
    assert yielded(block(timed)) == StepRef(("now_2", "result"))


def test_the_facets_of_now_and_uuid_are_declared() -> None:
    declared = declarations(timed)
    assert declared["flowengine.now"].params == (Field("after", default=Literal(None)),)
    schema = {"type": "string", "format": "uuid"}
    assert declared["flowengine.uuid"].returns == (Field("result", "String", schema=schema),)


def test_outside_a_workflow_now_and_uuid_use_python() -> None:
    assert now(after=3).tzinfo is UTC
    assert uuid() != uuid()
    assert isinstance(timed.fn(), datetime)


@pytest.mark.parametrize("name", ["foreach", "when", "attempt", "now", "uuid"])
def test_names_of_built_in_facets_are_reserved(name: str) -> None:
    with pytest.raises(AuthoringError, match=rf"'flowengine\.{name}' is reserved for {name}\("):
        event_facet(name=f"flowengine.{name}")(lambda: None)
