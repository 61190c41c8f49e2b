"""Programs survive a round trip through AFL text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from flowengine.afl import read_text
from tests.builders import Node
from tests.examples_drawn import AT_RANDOM
from tests.unit.afl.documents import documents, expressions
from tests.unit.afl.texts import expression, text_of


def without_places(node: Any) -> Any:
    if isinstance(node, dict):
        return {k: without_places(v) for k, v in node.items() if k not in ("id", "location")}
    return [without_places(child) for child in node] if isinstance(node, list) else node


# Documents are large, and shrinking one takes too long.
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@settings(
    max_examples=1000 if AT_RANDOM else 12,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
@given(documents)
def test_a_program_survives_a_round_trip_through_text(document: Node) -> None:
    assert without_places(read_text(text_of(document))) == document


@settings(max_examples=300 if AT_RANDOM else 20)
@given(expressions)
def test_an_expression_survives_minimal_parentheses(value: Node) -> None:
    read = read_text(f"facet F(x: Json = {expression(value)})")
    assert read["declarations"][0]["params"][0]["default"] == value
