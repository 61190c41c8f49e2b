"""Any text is a document, or an error with its place: never another error."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from flowengine.documents import compile_document
from flowengine.errors import InvalidDocument
from flowengine.errors.documents import DocumentProblem
from tests.examples_drawn import AT_RANDOM

_WORDS = st.sampled_from(
    [
        "tasks",
        "call",
        "with",
        "wait",
        "depends",
        "on",
        "schedule",
        "cron",
        "inputs",
        "result",
        "retry",
        "timeout",
        "workflow",
        "run",
        "uv",
        "sh",
        "env",
        "stdin",
        "directory",
        "script",
        "concurrency",
        "runs",
        "${tasks.a.stdout}",
        "type",
        "default",
        "a",
        "b",
        "x.f",
        "10m",
        "${tasks.a.result}",
        "${inputs.a}",
        "${",
        "$${",
        "${tick.date}",
        "!Subprocess",
        "config",
        "*a",
        "&a",
        "!!int",
        "|",
        ">",
        "~",
        "1",
        "-1.5",
        ".inf",
        "<<",
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "'",
        '"',
        "#",
        "\x00",
        "é",
        "@daily",
        ": ",
        "- ",
        "\n",
        "\n  ",
        "\n    ",
        "---\n",
        "\t",
        "0 0 30 2 *",
    ]
)
_TEXTS = st.lists(_WORDS, max_size=40).map("".join)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=4),
    max_leaves=20,
)


def check(text: str | bytes) -> None:
    found: list[DocumentProblem] | None = None
    try:
        compile_document(text, "w", "w.yml")
    except InvalidDocument as error:
        found = error.problems
    if found is not None:
        assert found
        assert all(each.line >= 1 and each.column >= 1 and each.what for each in found)


@settings(max_examples=1_000 if AT_RANDOM else 60, deadline=None)
@given(_TEXTS | st.text() | st.binary())
def test_any_text_is_compiled_or_refused_with_a_place(text: str | bytes) -> None:
    check(text)


@settings(max_examples=1_000 if AT_RANDOM else 60, deadline=None)
@given(st.dictionaries(_WORDS, _VALUES, max_size=4), _VALUES)
def test_any_values_are_compiled_or_refused_with_a_place(document: object, task: object) -> None:
    assert isinstance(document, dict)
    check(json.dumps(document))
    check(json.dumps({**document, "tasks": {"a": task, "b": {"call": "x.f", "depends": ["a"]}}}))
    inner = task if isinstance(task, dict) else {}
    check(json.dumps({**document, "tasks": {"a": {"call": "x.f", **inner}}}))
    commands = {"a": {"run": ["x", task], "env": inner}, "b": {"sh": task, "stdin": task}}
    check(json.dumps({"tasks": {**commands, "c": {"uv": {"script": "x", "args": [task]}}}}))
