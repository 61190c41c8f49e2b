"""The texts of the conformance corpus parse to the JSON of AFL's own compiler."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowengine.afl import read_text
from flowengine.program import parse_program
from tests.unit.afl.test_round_trip import without_places

CORPUS = {
    path.stem: case
    for path in sorted((Path(__file__).parents[2] / "conformance").glob("*.json"))
    if (case := json.loads(path.read_text()))["source"]
}
LATEST = {name: case for name, case in CORPUS.items() if case["generation"] == "latest"}


def places(node: Any, path: str = "") -> Iterator[tuple[str, int, int]]:
    if isinstance(node, dict):
        if "location" in node and path:  # the program's position is its first line
            yield path, node["location"]["line"], node["location"]["column"]
        for key, child in node.items():
            yield from places(child, f"{path}/{key}")
    elif isinstance(node, list):
        for index, child in enumerate(node):
            yield from places(child, f"{path}/{index}")


def test_the_corpus_is_not_empty() -> None:
    assert len(LATEST) > 40


@pytest.mark.parametrize("name", LATEST)
def test_a_text_parses_to_the_json_of_the_afl_compiler(name: str) -> None:
    case = LATEST[name]
    read = read_text(case["source"])
    assert without_places(read) == without_places(case["program"])
    assert parse_program(read) == parse_program(case["program"])


@pytest.mark.parametrize("name", LATEST)
def test_every_node_has_the_position_of_the_afl_compiler(name: str) -> None:
    case = LATEST[name]
    assert set(places(case["program"])) <= set(places(read_text(case["source"])))


@pytest.mark.parametrize("name", [name for name in CORPUS if name not in LATEST])
def test_a_text_of_the_first_generation_can_be_parsed(name: str) -> None:
    assert read_text(CORPUS[name]["source"])["declarations"]
