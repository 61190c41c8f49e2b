"""Program JSON becomes nodes, or all that is wrong with it is said at once."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from flowengine.errors import InvalidProgram
from flowengine.program import Program, parse_program, write_program
from flowengine.program.json_reader import read_json
from flowengine.program.nodes import (
    ArrayLiteral,
    ArrayType,
    AssertStatement,
    EventOptions,
    FacetDeclaration,
    FacetKind,
    Literal,
    LogStatement,
    Namespace,
    RetryPolicy,
    StepRef,
    StepStatement,
)
from tests.builders import (
    Node,
    always,
    block,
    case,
    check,
    default,
    event,
    facet,
    given,
    log,
    namespace,
    of,
    op,
    program,
    step,
    to,
    when,
    workflow,
)

CONFORMANCE = sorted((Path(__file__).parents[2] / "conformance").glob("*.json"))


def problems(document: Any) -> list[str]:
    with pytest.raises(InvalidProgram) as caught:
        parse_program(document)
    return [str(problem) for problem in caught.value.problems]


def the_facet(document: Node) -> FacetDeclaration:
    (found,) = parse_program(document).declarations
    assert isinstance(found, FacetDeclaration)
    return found


def the_argument(value: Any) -> Any:
    document = program(facet("F", "", "", block(step("s", "E", x=value))))
    (statement,) = the_facet(document).body[0].statements
    assert isinstance(statement, StepStatement)
    return statement.call.arguments[0].value


# --- what is read ---


def test_each_kind_of_facet_is_read_with_its_fields() -> None:
    document = program(
        facet("F", "a:Long xs:[[String]]", "b"), event("E"), workflow("W", "", "out:Double")
    )
    kinds = [d.kind for d in parse_program(document).declarations]  # type: ignore[union-attr]
    assert kinds == [FacetKind.FACET, FacetKind.EVENT, FacetKind.WORKFLOW]
    (found, *_) = parse_program(document).declarations
    assert isinstance(found, FacetDeclaration)
    assert [field.type for field in found.params] == ["Long", ArrayType(ArrayType("String"))]


def test_statements_keep_their_order_and_kind() -> None:
    document = program(facet("F", "", "", block(log(said=1), step("s", "E"), check(True))))
    kinds = [type(s) for s in the_facet(document).body[0].statements]
    assert kinds == [LogStatement, StepStatement, AssertStatement]


def test_one_yield_and_a_list_of_yields_are_both_read_in_order() -> None:
    both = block(yields=[to("F", b=2), to("F", c=3)]) | {"yield": to("F", a=1)}
    (read,) = the_facet(program(facet("F", "", "", both))).body
    assert [y.call.arguments[0].name for y in read.yields] == ["a", "b", "c"]


def test_a_body_may_be_one_block_or_a_list_of_them() -> None:
    alone = facet("F") | {"body": block(step("s", "E"))}
    assert the_facet(program(alone)) == the_facet(
        program(facet("F", "", "", block(step("s", "E"))))
    )


def test_a_bare_json_value_is_a_literal() -> None:
    assert the_argument("text") == Literal("text")
    assert the_argument([1, None]) == ArrayLiteral((Literal(1), Literal(None)))


def test_options_of_an_event_facet_are_read_and_the_rest_are_the_defaults() -> None:
    options = {"task_list": "gpu", "retry": {"attempts": 4}, "timeout": 30}
    found = the_facet(program(event("E", options=options))).options
    assert found == EventOptions("gpu", RetryPolicy(attempts=4), 30)


def test_the_first_generation_lists_declarations_by_category_and_repeats_them() -> None:
    one, other = facet("F"), workflow("W", "", "", block(step("s", "F")))
    first = {
        "type": "Program",
        "facets": [one],
        "workflows": [other],
        "declarations": [one],
    }
    assert parse_program(first) == parse_program(program(one, other))


def test_a_namespace_of_the_first_generation_is_read_like_one_of_the_latest() -> None:
    inner = {"type": "Namespace", "name": "n", "facets": [facet("F")], "eventFacets": [event("E")]}
    first = {"type": "Program", "namespaces": [inner]}
    found = parse_program(first)
    assert found == parse_program(program(namespace("n", facet("F"), event("E"))))
    assert isinstance(found.declarations[0], Namespace)


@pytest.mark.parametrize("path", CONFORMANCE, ids=lambda path: path.stem)
def test_parsing_a_serialized_program_gives_the_same_program(path: Path) -> None:
    document = json.loads(path.read_text())["program"]
    try:
        parsed = parse_program(document)
    except InvalidProgram:
        assert "invalid" in path.stem
        return
    written = json.loads(json.dumps(write_program(parsed)))
    assert parse_program(written) == parsed
    assert write_program(parse_program(written)) == written


def test_constructs_that_are_not_executed_yet_survive_the_round_trip() -> None:
    cases = [
        case(op(given("a"), ">", 1), always(step("s", "E"), step("t", "E"))),
        default(yields=[to("F", b=1)]),
    ]
    items = block(foreach=("i", given("a")), limit=given("a"), collect_errors=True)
    mixin = {"type": "MixinSig", "target": "M", "args": [{"name": "x", "value": 1}], "alias": "m"}
    script = {"type": "ScriptBlock", "language": "python", "code": "pass"}
    rich = facet("F", [{"name": "a", "type": "Long", "default": 1, "schema": {"minimum": 0}}])
    rich |= {
        "mixins": [mixin],
        "pre_script": script,
        "catch": {"type": "CatchClause", "when": when(*cases)["when"]},
        "body": [when(*cases, first=True), items, script],
    }
    prompt = event("P") | {"body": {"type": "PromptBlock", "template": "Say {x}", "model": "m"}}
    schema = {"type": "SchemaDecl", "name": "S", "fields": [{"name": "x", "type": "Long"}]}
    implicit = {"type": "ImplicitDecl", "name": "i", "call": {"type": "CallExpr", "target": "F"}}
    parsed = parse_program(program(rich, prompt, schema, implicit))
    assert parse_program(write_program(parsed)) == parsed


# --- what is refused ---


def test_a_document_that_is_no_program_is_refused() -> None:
    assert problems([]) == ["expected a Program, found a list"]
    assert problems({"type": "Namespace"}) == ["expected a Program, found 'Namespace'"]


def test_an_empty_program_is_one() -> None:
    assert parse_program({"type": "Program"}) == Program()


@pytest.mark.parametrize(
    ("declaration", "problem"),
    [
        ({"type": "Dream", "name": "d"}, "d: unknown kind of declaration 'Dream'"),
        ({"type": "FacetDecl"}, "a declaration without name: a FacetDecl needs a name"),
        (
            facet("F") | {"params": {"name": "a"}},
            "F: 'params' must be a list, found a map",
        ),
        (facet("F", [{"type": "Long"}]), "F: a parameter needs 'name' as text, found nothing"),
        (
            facet("F", [{"name": "a", "type": {"type": "SetType"}}]),
            "F, parameter 'a': unknown type {'type': 'SetType'}",
        ),
        (facet("F") | {"body": 3}, "F: expected a block, found a number"),
        (facet("F") | {"body": {"type": "Loop"}}, "F: unknown kind of block 'Loop'"),
        (
            facet("F") | {"body": [{"type": "PromptBlock"}]},
            "F: a prompt block can only be the body of an event facet",
        ),
        (
            facet("F", "", "", block({"type": "Goto"})),
            "F: unknown kind of statement 'Goto'",
        ),
        (
            facet("F", "", "", block(step("", "E"))),
            "F: StepStmt needs 'name' as text, found empty text",
        ),
        (
            facet("F", "", "", block({"type": "StepStmt", "name": "s"})),
            "F, step 's': expected a CallExpr, found nothing",
        ),
        (
            facet("F", "", "", block(foreach=("i", []), limit=0)),
            "F, foreach: 'limit' must be a whole number of at least 1",
        ),
        (
            facet("F", "", "", block(foreach=("i", []), collect_errors=1)),
            "F, foreach: 'collect_errors' must be true or false, found a number",
        ),
        (facet("F", "", "", when()), "F, when: needs at least one case"),
        (facet("F", "", "", when(default(), default())), "F, when: has more than one default"),
        (
            facet("F", "", "", {"type": "AndThenBlock", "when": {"match": "last", "cases": []}}),
            "F, when: 'match' can only be 'first', found 'last'",
        ),
        (
            facet("F", "", "", when({"type": "WhenCase"})),
            "F, when: a WhenCase needs a condition, or must be the default",
        ),
        (
            facet("F", "", "", block(step("s", "E")) | when(default())),
            "F: a block is made of steps, of cases or of a script, not of several",
        ),
        (
            facet("F", "", "", block(foreach=("", []))),
            "F, foreach: ForeachClause needs 'variable' as text, found empty text",
        ),
    ],
)
def test_a_broken_declaration_is_refused_with_its_place(declaration: Node, problem: str) -> None:
    assert problem in problems(program(declaration))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"type": "Lambda"}, "unknown expression node 'Lambda'"),
        ({"no": "type"}, "unknown expression node None"),
        (op(1, "**", 2), "unknown operator '**'"),
        ({"type": "UnaryExpr", "operator": "~", "operand": 1}, "unknown operator '~'"),
        ({"type": "StepRef", "path": []}, "StepRef needs a path of names, found []"),
        ({"type": "InputRef", "path": ["a", 1]}, "InputRef needs a path of names, found ['a', 1]"),
        ({"type": "Int", "value": "1"}, "Int literal holds text"),
        ({"type": "Int", "value": True}, "Int literal holds a truth value"),
        ({"type": "Boolean", "value": 1}, "Boolean literal holds a number"),
        ({"type": "String"}, "String literal holds nothing"),
        ({"type": "Double", "value": math.inf}, "inf is not a number that JSON can write"),
        (math.nan, "nan is not a number that JSON can write"),
    ],
)
def test_a_broken_expression_is_refused_with_its_step_and_argument(
    value: Any, problem: str
) -> None:
    document = program(facet("F", "", "", block(step("s", "E", x=value))))
    assert problems(document) == [f"F, step 's', argument 'x': {problem}"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"colour": "red"}, "unreadable options: "),
        ({"retry": 3}, "unreadable options: "),
        ({"timeout": -1}, "option 'timeout' must be a number of at least 0"),
        ({"timeout": "soon"}, "option 'timeout' must be a number of at least 0"),
        ({"max_losses": True}, "option 'max_losses' must be a number of at least 0"),
        ({"retry": {"attempts": 0}}, "retry needs at least one attempt"),
        ({"retry": {"first_wait": "1s"}}, "option 'first_wait' must be a number of at least 0"),
        ({"retry": {"factor": None}}, "option 'factor' must be a number of at least 0"),
        ({"breaker": 7}, "option 'breaker' must be text, found a number"),
        ({"task_list": 7}, "option 'task_list' must be text, found a number"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: Node, problem: str) -> None:
    (found,) = problems(program(event("E", options=options)))
    assert found.startswith(f"E: {problem}")


def test_all_problems_are_reported_at_once_each_with_its_place() -> None:
    broken = {"type": "Lambda"}
    document = program(
        namespace(
            "shop",
            facet("F", "", "", block(step("s", "E", x=broken), check(broken))),
            facet("G", "", "", block(yields=[to("G", out=broken)])),
        ),
        {"type": "Dream", "name": "d"},
    )
    assert problems(document) == [
        "shop, F, step 's', argument 'x': unknown expression node 'Lambda'",
        "shop, F, sys.assert: unknown expression node 'Lambda'",
        "shop, G, yield, argument 'out': unknown expression node 'Lambda'",
        "d: unknown kind of declaration 'Dream'",
    ]


def test_the_error_of_a_program_lists_one_problem_per_line() -> None:
    with pytest.raises(InvalidProgram) as caught:
        parse_program(program({"type": "Dream", "name": "d"}, {"type": "Dream", "name": "e"}))
    assert str(caught.value) == (
        "the program cannot be loaded, 2 problems:\n"
        "  - d: unknown kind of declaration 'Dream'\n"
        "  - e: unknown kind of declaration 'Dream'"
    )


def test_a_reference_of_one_name_is_the_whole_step() -> None:
    assert the_argument(of("s")) == StepRef(("s",))


def test_extensions_of_the_python_front_end_are_parsed_and_serialized() -> None:
    case = {"type": "WhenCase", "default": True, "yield": to("F", x=1)}
    when = {"type": "WhenBlock", "match": "first", "cases": [case]}
    each: Node = {"type": "ForeachClause", "variable": "v", "iterable": [], "limit": 3}
    guarded = step("s", "F", {"type": "AndThenBlock", "when": when}) | {
        "catch": {"type": "CatchClause", "when": when},
        "always": block(step("t", "F")),
    }
    looped = {"type": "AndThenBlock", "foreach": each | {"collect_errors": True}}
    parsed = parse_program(program(facet("F", "", "x", block(guarded), looped)))
    declared = parsed.declarations[0]
    assert isinstance(declared, FacetDeclaration)
    found = declared.body[0].statements[0]
    assert isinstance(found, StepStatement)
    assert found.body[0].first_match
    assert found.catch is not None
    assert found.catch.first_match
    (always,) = found.always
    assert [s.name for s in always.statements if isinstance(s, StepStatement)] == ["t"]
    assert declared.body[1].foreach is not None
    assert declared.body[1].foreach.limit == Literal(3)
    assert declared.body[1].foreach.collect_errors is True
    assert parse_program(write_program(parsed)) == parsed


# --- JSON text ---


def test_a_key_that_is_given_twice_is_refused_with_its_place() -> None:
    text = (
        '{"type": "Program", "declarations": [{"name": "a"}, '
        '{"name": "W", "params": [{"name": "n", "type": "Long", "name": "m"}]}], '
        '"x": {"y": {"z": 1, "z": 2}}}'
    )
    with pytest.raises(InvalidProgram) as refused:
        read_json(text)
    assert {str(problem) for problem in refused.value.problems} == {
        "$.declarations[1].params[0]: has the key 'name' twice; remove one",
        "$.x.y: has the key 'z' twice; remove one",
    }


def test_many_repeated_keys_of_a_deep_and_wide_text_are_refused_soon() -> None:
    inner = '{"a": 1, "a": 2}'
    wide = "[" + ",".join([inner] * 20_000) + "]"
    text = '{"k": ' * 300 + wide + "}" * 300
    with pytest.raises(InvalidProgram) as refused:
        read_json(text)
    assert len(refused.value.problems) == 100
    same = "{" + ",".join(f'"k{n % 50_000}": 0' for n in range(50_001)) + "}"
    with pytest.raises(InvalidProgram, match="the key 'k0' twice"):
        read_json(same)
    with pytest.raises(InvalidProgram, match="twice"):
        read_json('{"a": [' + ",".join([inner] * 200) + '], "a": 1}')


def test_text_that_is_no_json_is_refused() -> None:
    for text in ("{", "", "[" * 100_000, "\udcff".encode("utf-8", "surrogatepass")):
        with pytest.raises(InvalidProgram):
            read_json(text, "x.json")
