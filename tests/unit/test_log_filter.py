"""A log record is one line, whatever text of a run is in it."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import flowengine
from flowengine.log_filter import PrintableRecords, limit_records, safe_logger
from flowengine.settings import Settings

FORGED = "x\n2026-01-01 ERROR payment accepted\x1b[2J"


@pytest.fixture(params=["flowengine", "flowengine.test_of_the_filter"])
def logger(request: pytest.FixtureRequest) -> logging.Logger:
    return safe_logger(request.param)


@pytest.fixture
def output(logger: logging.Logger) -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("LOG %(levelname)s %(message)s"))
    logger.addHandler(handler)
    yield stream
    logger.removeHandler(handler)


def test_an_argument_cannot_begin_a_line_nor_move_the_cursor(
    logger: logging.Logger, output: io.StringIO
) -> None:
    logger.error("%s failed: %s", FORGED, ValueError(FORGED))
    logger.error(FORGED)
    logger.error("%(name)s", {"name": FORGED})
    lines = output.getvalue().splitlines()
    assert len(lines) == 3
    assert all(line.startswith("LOG ERROR ") for line in lines)
    assert "\x1b" not in output.getvalue()


def test_numbers_and_reprs_are_formatted_as_before(
    logger: logging.Logger, output: io.StringIO
) -> None:
    logger.error("%d of %.1f, %g s: %r %s", 3, 2.25, 0.5, "it's", {"a": [1]})
    assert output.getvalue() == "LOG ERROR 3 of 2.2, 0.5 s: \"it's\" {'a': [1]}\n"


def test_lines_of_a_traceback_are_indented(logger: logging.Logger, output: io.StringIO) -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        logger.exception("failed")
    first, *others = output.getvalue().splitlines()
    assert first == "LOG ERROR failed"
    assert any("ValueError: x" in line for line in others)
    assert all(line.startswith("  ") for line in others)
    assert "\x1b" not in output.getvalue()


def test_a_record_is_not_longer_than_some_thousand_characters(
    logger: logging.Logger, output: io.StringIO
) -> None:
    logger.error("%s", "x" * 10_000_000)
    assert len(output.getvalue()) < 5_000
    try:
        raise ValueError("x" * 10_000_000 + "\n" * 1_000_000)
    except ValueError:
        logger.exception("failed")
    assert len(output.getvalue()) < 500_000


def test_every_logger_of_the_package_has_the_filter() -> None:
    folder = Path(flowengine.__file__).parent
    found = {
        (str(path.relative_to(folder)), name)
        for path in folder.rglob("*.py")
        for name in re.findall(r"getLogger\((.*?)\)", path.read_text())
    }
    assert {name for _, name in found} == {'"flowengine"', "name"}
    assert [path for path, name in found if name == "name"] == ["log_filter.py"]


def test_the_setting_decides_how_long_an_argument_may_be(
    logger: logging.Logger, output: io.StringIO
) -> None:
    assert PrintableRecords.limit == Settings().max_log_length
    try:
        limit_records(40)
        logger.error("%s failed: %r", "a" * 500, "b" * 500)
        logger.error("c" * 500)
        for text in output.getvalue().splitlines():
            for letter in "abc":
                assert text.count(letter) <= 45
            assert "500 characters" in text or "502 characters" in text
    finally:
        limit_records(Settings().max_log_length)
