"""Bytes travel through runs, messages and the command line as base64."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flowengine import InvalidInputs, event_facet, workflow
from flowengine.assembly import EngineLauncher
from flowengine.cli.targets import _value
from flowengine.errors import DoesNotFit
from flowengine.testing import Flow

RAW = b"\xff\x00\xfe text"
WRITTEN = "/wD+IHRleHQ="


@dataclass
class Scan:
    page: int
    image: bytes = b"\xff"


@event_facet(name="forms.reverse")
def reverse(raw: bytes, tail: bytes = b"\xfd") -> bytes:
    return raw[::-1] + tail


@event_facet(name="forms.scan")
def scan(raw: bytes) -> Scan:
    return Scan(len(raw), raw)


@event_facet(name="forms.images")
def images(scans: list[Scan]) -> list[bytes]:
    return [one.image for one in scans]


@workflow(name="forms.turned")
def turned(raw: bytes, more: bytes = b"\xfc") -> list[bytes]:
    first = scan(reverse(raw))
    second = scan(reverse(b"\xff\xfe", more))
    return images([first, second])


def test_bytes_travel_through_a_run() -> None:
    with Flow() as flow:
        assert flow.run(turned, RAW) == [RAW[::-1] + b"\xfd", b"\xfe\xff\xfc"]


def test_a_message_and_an_answer_have_bytes_as_base64() -> None:
    with Flow() as flow:
        EngineLauncher(flow.engine).start_named(turned.name, {"raw": WRITTEN}, "a")
        (run,) = flow.engine.list()
        given = {step.path: step.params for step in flow.engine.steps(run.id)}
        assert given["turned"] == {"raw": WRITTEN, "more": "/A=="}
        assert given["turned.reverse_2"] == {"raw": "//4=", "tail": "/A=="}
        (first, _) = flow.engine.tasks(run.id)
        flow.engine.continue_step(first.step_id, WRITTEN)
        flow.settle()
        assert flow.engine.get(run.id).outputs == {"result": [WRITTEN, "/v/8"]}
        with pytest.raises(InvalidInputs, match=r"'raw' should be bytes, .*base64"):
            EngineLauncher(flow.engine).start_named(turned.name, {"raw": "not base64"}, "b")


def test_a_message_with_other_values_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with Flow() as flow:
        start = EngineLauncher(flow.engine).start_named
        for value in (deep, {1}, 5, None, {"$secret": 5}):
            with pytest.raises(InvalidInputs, match="'raw'"):
                start(turned.name, {"raw": value}, "a", "start", "\ud800")


def test_an_argument_that_is_not_base64_names_the_parameter() -> None:
    with pytest.raises(DoesNotFit, match=r"'raw' should be bytes, .*base64"):
        reverse.run({"raw": "not base64"})


def test_the_command_line_reads_bytes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(RAW)
    field = turned.definition.signature.fields()[0]
    assert _value("raw", f"@{tmp_path}/raw", field) == WRITTEN
