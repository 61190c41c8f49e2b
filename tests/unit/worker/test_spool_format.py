"""Spooled reports are read as they were written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowengine.authoring import WorkflowCall
from flowengine.evaluator.triggers import Delegated, Failed, Lost, Succeeded
from flowengine.worker.spool import SpooledOutcome, decoded, spool_record
from tests.integration.engines import one as one_event
from tests.unit.worker.claims import task

TEXTS = st.text(max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
MAPS = st.dictionaries(TEXTS, VALUES, max_size=3)
ERRORS = st.builds(lambda more, *of: {**more, "type": of[0], "message": of[1]}, MAPS, TEXTS, TEXTS)
PROGRAMS = st.sampled_from([None, one_event()])
OUTCOMES: st.SearchStrategy[SpooledOutcome] = st.one_of(
    MAPS.map(Succeeded),
    st.builds(Failed, ERRORS, retry=st.booleans()),
    TEXTS.map(Lost),
    TEXTS.map(Delegated),
    st.builds(WorkflowCall, PROGRAMS, TEXTS, MAPS, st.booleans()),
)


@given(OUTCOMES)
def test_a_record_keeps_the_try_and_its_outcome(outcome: SpooledOutcome) -> None:
    reported = task(step_key="key", step_path="w.s", lease=3)
    read, found = decoded(json.loads(json.dumps(spool_record(reported, outcome))))
    assert found == outcome
    names = ("uuid", "name", "workflow_id", "flow_id", "step_id", "step_key", "step_path", "lease")
    assert [getattr(read, name) for name in names] == [getattr(reported, name) for name in names]


@pytest.mark.parametrize("value", [object(), {1: 2}, float("nan")])
@pytest.mark.parametrize(
    "kind", [lambda v: Succeeded({"y": v}), lambda v: WorkflowCall(None, "w", {"y": v})]
)
def test_a_value_without_a_json_form_fails_the_try(kind: Any, value: Any) -> None:
    _, found = decoded(json.loads(json.dumps(spool_record(task(), kind(value)))))
    assert isinstance(found, Failed)
    assert (found.error["type"], found.retry) == ("NotJson", False)
