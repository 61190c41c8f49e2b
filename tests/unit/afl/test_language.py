"""The syntax of AFL text."""

from __future__ import annotations

from typing import Any

import pytest

from flowengine.afl import read_text
from tests.builders import Node
from tests.unit.afl.test_round_trip import without_places


def declared(text: str) -> Node:
    (found,) = without_places(read_text(text))["declarations"]
    return dict(found)


def default(value: str) -> Any:
    return declared(f"facet F(x: Json = {value})")["params"][0]["default"]


def the_block(text: str) -> Node:
    return dict(declared(f"workflow W() andThen {text}")["body"])


def test_line_ends_tabs_and_semicolons_are_ignored() -> None:
    spread = "namespace a\r\n{\r\n\tfacet\r\n\tF(\tx:\tLong\r\n)\r\n\tuse b;;\r\n}\r\n"
    dense = "namespace a { facet F(x: Long) use b }"
    assert without_places(read_text(spread)) == without_places(read_text(dense))
    steps = the_block("{ a = F(); b = G() c = H(); yield W(); }")["steps"]
    assert [step["name"] for step in steps] == ["a", "b", "c"]


def test_comments_are_allowed_between_any_two_words() -> None:
    text = 'facet /* a */ F // b }\n ( /** c */ x: Long) /* } " */'
    assert declared(text) == declared("facet F(x: Long)")


def test_an_empty_text_is_an_empty_program() -> None:
    assert read_text(" // nothing\n") == {"type": "Program"}


def test_a_byte_order_mark_and_bytes_are_accepted() -> None:
    assert read_text("\ufefffacet F()".encode()) == read_text("facet F()")


def test_a_doc_comment_belongs_to_the_next_declaration() -> None:
    text = """
    /** Count words.
      * Twice.
      * @param text  what to count
      * @return n  how many
      */
    event facet Count(text: String) => (n: Long)
    /** nothing follows */
    """
    assert declared(text)["doc"] == {
        "description": "Count words.\nTwice.",
        "params": [{"name": "text", "description": "what to count"}],
        "returns": [{"name": "n", "description": "how many"}],
    }


@pytest.mark.parametrize("word", ["event", "in", "when", "script", "prompt", "model", "use", "as"])
def test_a_keyword_may_be_a_name_where_it_is_unambiguous(word: str) -> None:
    text = f"{{ s = F({word} = $.{word}.{word}) yield W({word} = s.{word}) }}"
    (argument,) = the_block(text)["steps"][0]["call"]["args"]
    assert argument == {"name": word, "value": {"type": "InputRef", "path": [word, word]}}
    assert declared(f"schema {word} {{ {word}: Long }}")["name"] == word


def test_a_step_after_a_block_may_be_named_case() -> None:
    read = read_text("workflow W() andThen { a = F() catch { }\n case = F() }")
    steps = read["declarations"][0]["body"]["steps"]
    assert [step["name"] for step in steps] == ["a", "case"]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (r'"a\n\t\"\\"', 'a\n\t"\\'),
        (r'"\x41\u00e9\U0001F40B\101"', "Aé🐋A"),
        (r'"\ud83d\udc0b"', "🐋"),
        (r'"\d+ é"', "\\d+ é"),
        ('"two\nlines"', "two\nlines"),
        ("12", 12),
        ("0.5", 0.5),
        ("2.5E-3", 0.0025),
        ("true", True),
    ],
)
def test_literals_have_their_json_value(written: str, value: Any) -> None:
    assert default(written)["value"] == value


@pytest.mark.parametrize(
    ("written", "grouped"),
    [
        ("1 + 2 * 3 - 4", "(1 + (2 * 3)) - 4"),
        ("1 - 2 - 3", "(1 - 2) - 3"),
        ('"a" ++ 1 + 2 ++ "b"', '"a" ++ (1 + 2) ++ "b"'),
        ("a.x > 1 && b.x in c.y || !d.z", "((a.x > 1) && (b.x in c.y)) || (!d.z)"),
        ('"a" ++ "b" == c.x', '("a" ++ "b") == c.x'),
        ("-a.x[0][1] * 2", "(-((a.x[0])[1])) * 2"),
        ("+1", "1"),
        ("a.x not  in [1]", "a.x not in [1]"),
    ],
)
def test_operators_have_the_precedence_of_afl(written: str, grouped: str) -> None:
    assert default(written) == default(grouped)


def test_an_operator_word_is_not_a_prefix_of_a_name() -> None:
    assert default("a.incident")["path"] == ["a", "incident"]
    assert default("a.x in inside.y")["right"]["path"] == ["inside", "y"]


def test_one_block_is_a_map_and_several_blocks_are_a_list() -> None:
    assert declared("facet F() andThen { }")["body"] == {"type": "AndThenBlock"}
    assert len(declared("facet F() andThen { } andThen { }")["body"]) == 2
    assert len(the_block("{ s = F() andThen { } andThen { } }")["steps"][0]["body"]) == 2


def test_a_step_may_come_after_others() -> None:
    steps = the_block("{ a = F() b = F() after a c = F() after a, b ended andThen { } }")["steps"]
    assert [step.get("after") for step in steps] == [
        *(None, [{"step": "a"}]),
        [{"step": "a"}, {"step": "b", "on": "ended"}],
    ]


def test_steps_may_be_named_after_and_ended() -> None:
    steps = the_block("{ a = F() after = F() after a ended = F() after after, a ended }")["steps"]
    assert [(step["name"], len(step.get("after", []))) for step in steps] == [
        *(("a", 0), ("after", 1), ("ended", 2)),
    ]


def test_a_yield_with_mixins_is_a_yield_to_each() -> None:
    yields = the_block("{ yield W(a = 1)\n with M(b = 2) with N() }")["yields"]
    assert [one["call"]["target"] for one in yields] == ["W", "M", "N"]
    assert all("mixins" not in one["call"] for one in yields)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ('script "x = 1"', "x = 1"),
        ('script python "x = 1"', "x = 1"),
        ("script { x = {1: '}'} }", "x = {1: '}'}"),
        ("script python {\n    if x:\n        y = 1  # }\n}", "if x:\n    y = 1  # }"),
        ('script { x = """}""" + \'\\\'}\' }', 'x = """}""" + \'\\\'}\''),
    ],
)
def test_a_script_is_a_string_or_a_block_in_braces(script: str, code: str) -> None:
    assert declared(f"facet F() {script} andThen {{ }}")["pre_script"]["code"] == code
    assert the_block(script)["script"]["code"] == code


def test_script_as_a_name_or_in_a_string_is_not_a_script() -> None:
    assert declared("namespace script { }")["name"] == "script"
    assert the_block('foreach s in script { a = F(x = ") script {") }')["steps"][0]["name"] == "a"


def test_a_prompt_is_the_body_of_an_event_facet() -> None:
    body = declared('event facet A(q: String) prompt { system "be brief" template "{q}" }')["body"]
    assert body == {"type": "PromptBlock", "system": "be brief", "template": "{q}"}


def test_any_separator_works_between_fields_of_a_schema() -> None:
    fields = declared("schema S { a: Long, b: [x.Y]; c: Json\n d: Long }")["fields"]
    assert [field["name"] for field in fields] == ["a", "b", "c", "d"]
    assert fields[1]["type"] == {"type": "ArrayType", "elementType": "x.Y"}
