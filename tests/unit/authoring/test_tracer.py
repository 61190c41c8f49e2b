"""The program of a traced workflow."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import pytest

from flowengine.authoring import (
    Retry,
    concat,
    contains,
    event_facet,
    facet,
    workflow,
)
from flowengine.errors import AuthoringError
from flowengine.program.nodes import (
    Argument,
    ArrayLiteral,
    ArrayType,
    Binary,
    Call,
    Concat,
    EventOptions,
    FacetKind,
    Field,
    Index,
    InputRef,
    Literal,
    MapLiteral,
    Namespace,
    RetryPolicy,
    StepRef,
    Unary,
)
from flowengine.program.serializer import program_hash
from tests.unit.authoring.compiled import block, declarations, steps, yielded


@event_facet(task_list="io", retry=Retry(attempts=3), timeout=30)
def fetch(url: str) -> str:
    return "text of " + url


@event_facet
def measure(text: str, unit: str = "word") -> dict[str, int]:
    return {unit: len(text)}


@event_facet
def anything(value: Any) -> Any:
    return value


@workflow
def page_size(url: str, limit: int = 10) -> int:
    size: Any = measure(fetch(url))
    return size.word  # type: ignore[no-any-return]


@workflow
def countdown(numbers: list[int]) -> list[list[int]]:
    return later(numbers)


@facet
def later(numbers: list[int]) -> list[list[int]]:
    """Defined after its caller."""
    return [anything(numbers)]


def test_a_program_declares_all_called_facets_sorted_by_name() -> None:
    (namespace,) = page_size.program().declarations
    assert isinstance(namespace, Namespace)
    assert namespace.name == __name__
    found = declarations(page_size)
    assert [(d.name, d.kind) for d in found.values()] == [
        ("fetch", FacetKind.EVENT),
        ("measure", FacetKind.EVENT),
        ("page_size", FacetKind.WORKFLOW),
    ]


def test_signatures_become_fields_with_defaults_and_one_return() -> None:
    workflow_ = declarations(page_size)[page_size.name]
    assert workflow_.params == (Field("url", "String"), Field("limit", "Long", Literal(10)))
    assert workflow_.returns == (Field("result", "Long"),)
    returned = declarations(page_size)[measure.name].returns[0]
    assert (returned.name, returned.type) == ("result", "Json")
    assert returned.schema == {"type": "object", "additionalProperties": {"type": "integer"}}


def test_the_options_of_an_event_facet_are_part_of_its_declaration() -> None:
    assert declarations(page_size)[fetch.name].options == EventOptions(
        task_list="io", retry=RetryPolicy(attempts=3), timeout=30.0, max_losses=3
    )


def test_a_call_becomes_a_step_and_its_result_a_reference() -> None:
    first, second = steps(block(page_size))
    assert first.name == "fetch"
    assert first.call == Call(fetch.name, (Argument("url", InputRef(("url",))),))
    assert second.call.arguments == (Argument("text", StepRef(("fetch", "result"))),)
    (one,) = block(page_size).yields
    assert one.call.target == page_size.name
    assert yielded(block(page_size)) == StepRef(("measure", "result", "word"))


def test_a_step_records_the_line_of_its_call() -> None:
    location = steps(block(page_size))[0].location
    assert location is not None
    assert location.file == __file__
    assert location.line == page_size.location.line + 2


def test_forward_references_and_plain_facets_work() -> None:
    found = declarations(countdown)
    assert found[later.name].kind is FacetKind.FACET
    (body,) = found[later.name].body
    assert yielded(body) == ArrayLiteral((StepRef(("anything", "result")),))


def test_a_workflow_may_call_itself() -> None:
    from flowengine.authoring import foreach

    @workflow(name="tree.walk")
    def walk(nodes: list[Any]) -> list[Any]:
        return foreach(nodes, lambda node: walk(node.children))

    assert set(declarations(walk)) == {"tree.walk", "flowengine.foreach"}


def test_repeated_steps_are_numbered() -> None:
    @workflow(name="t.twice")
    def twice(url: str) -> list[str]:
        return [fetch(url), fetch(url), fetch.named("fetch_4")(url), fetch(url)]

    assert [s.name for s in steps(block(twice))] == ["fetch", "fetch_2", "fetch_4", "fetch_3"]


def test_a_step_can_be_named() -> None:
    @workflow(name="t.named")
    def named(url: str) -> str:
        return fetch.named("download")(url)

    assert yielded(block(named)) == StepRef(("download", "result"))
    assert fetch.step_name == ""


def test_a_duplicate_step_name_raises_with_the_line_of_the_first() -> None:
    @workflow(name="t.same")
    def same(url: str) -> None:
        fetch.named("a")(url)
        fetch.named("a")(url)

    with pytest.raises(AuthoringError, match=r"test_tracer.py:\d+: the step name 'a' is already"):
        same.program()


def test_a_step_name_must_be_valid_in_a_path() -> None:
    with pytest.raises(AuthoringError, match=r"'a\.b' is not an identifier"):
        fetch.named("a.b")


def test_operators_build_expressions_from_both_sides() -> None:
    a, b = InputRef(("a",)), InputRef(("b",))

    @workflow(name="t.maths")
    def maths(a: int, b: int) -> list[Any]:
        return [
            a + b, a - 1, 2 * a, a / b, 7 % a,
            a == b, a != 1, a < b, 3 <= a, a > b, a >= b,  # noqa: SIM300
            (a > 1) & (b > 1), (a > 1) | True, ~(a == b), -a,
        ]  # fmt: skip

    assert yielded(block(maths)) == ArrayLiteral(
        (
            Binary("+", a, b),
            Binary("-", a, Literal(1)),
            Binary("*", Literal(2), a),
            Binary("/", a, b),
            Binary("%", Literal(7), a),
            Binary("==", a, b),
            Binary("!=", a, Literal(1)),
            Binary("<", a, b),
            Binary(">=", a, Literal(3)),
            Binary(">", a, b),
            Binary(">=", a, b),
            Binary("&&", Binary(">", a, Literal(1)), Binary(">", b, Literal(1))),
            Binary("||", Binary(">", a, Literal(1)), Literal(True)),
            Unary("!", Binary("==", a, b)),
            Unary("-", a),
        )
    )


def test_text_and_lists_join_a_symbol_from_the_left() -> None:
    @workflow(name="t.joined")
    def joined(a: str, b: list[int]) -> list[Any]:
        return ["x" + a, [1] + b]  # noqa: RUF005 - the operator is what is tested

    assert yielded(block(joined)) == ArrayLiteral(
        (
            Binary("+", Literal("x"), InputRef(("a",))),
            Binary("+", Literal([1]), InputRef(("b",))),
        )
    )


def test_fields_extend_a_path_and_items_index_it() -> None:
    @workflow(name="t.paths")
    def paths(order: Any, key: str) -> list[Any]:
        lines = anything(order).lines
        return [order.buyer.name, lines[0].price, order[key], order["a b"], (order + 1).x]

    lines = StepRef(("anything", "result", "lines"))
    order = InputRef(("order",))
    assert yielded(block(paths)) == ArrayLiteral(
        (
            InputRef(("order", "buyer", "name")),
            Index(Index(lines, Literal(0)), Literal("price")),
            Index(order, InputRef(("key",))),
            Index(order, Literal("a b")),
            Index(Binary("+", order, Literal(1)), Literal("x")),
        )
    )


def test_contains_and_concat_are_expressions_in_a_trace_and_python_outside() -> None:
    @workflow(name="t.words")
    def words(a: str, b: list[str]) -> list[Any]:
        return [contains(b, a), concat("<", a, ">", 1), contains(["x"], "x"), concat("a", 1)]

    a, b = InputRef(("a",)), InputRef(("b",))
    assert yielded(block(words)) == ArrayLiteral(
        (
            Binary("contains", b, a),
            Concat((Literal("<"), a, Literal(">"), Literal(1))),
            Literal(True),
            Literal("a1"),
        )
    )
    assert words.fn("x", ["x"]) == [True, "<x>1", True, "a1"]
    assert concat("a", None, 1.5, True) == "a1.5true"


@dataclass
class Report:
    title: str
    size: int


def test_python_values_around_symbols_become_literals() -> None:
    @workflow(name="t.mixed")
    def mixed(a: int) -> Any:
        return {"a": a, "known": {"day": datetime.date(2026, 1, 2)}, "report": Report("x", a)}

    assert yielded(block(mixed)) == MapLiteral(
        (
            ("a", InputRef(("a",))),
            ("known", Literal({"day": "2026-01-02"})),
            ("report", MapLiteral((("title", Literal("x")), ("size", InputRef(("a",)))))),
        )
    )


def test_a_constant_argument_is_validated_and_serialized_by_its_annotation() -> None:
    @event_facet(name="t.send")
    def send(report: Report, when: datetime.date) -> None: ...

    @workflow(name="t.sending")
    def sending() -> None:
        send(Report("x", 1), datetime.date(2026, 1, 2))

    @workflow(name="t.wrong")
    def wrong() -> None:
        fetch(5)  # type: ignore[arg-type]

    (step,) = steps(block(sending))
    assert step.call.arguments == (
        Argument("report", Literal({"title": "x", "size": 1})),
        Argument("when", Literal("2026-01-02")),
    )
    with pytest.raises(AuthoringError, match=r"test_tracer\.py:\d+.*'url' should be str, was 5"):
        wrong.program()


def test_an_invalid_call_lists_every_problem() -> None:
    @workflow(name="t.misfit")
    def misfit(a: str) -> None:
        measure(a, text=a, colour="red")  # type: ignore[call-arg, misc]

    with pytest.raises(AuthoringError, match="'text' was given twice; 'colour' is unknown"):
        misfit.program()


def test_a_value_without_json_form_raises_with_its_line() -> None:
    @workflow(name="t.odd")
    def odd(a: Any) -> Any:
        return [a, object()]

    with pytest.raises(AuthoringError, match=r"a value in a workflow is not JSON.*object"):
        odd.program()


def test_returning_nothing_yields_null() -> None:
    @workflow(name="t.quiet")
    def quiet(url: str) -> None:
        fetch(url)

    assert yielded(block(quiet)) == Literal(None)


def test_a_constant_result_is_validated_by_its_annotation() -> None:
    @workflow(name="t.number")
    def number() -> int:
        return "many"  # type: ignore[return-value]

    with pytest.raises(AuthoringError, match=r"workflow 't.number' .*'result' should be int"):
        number.program()


def test_types_and_schemas_follow_the_annotations() -> None:
    @workflow(name="t.types")
    def types(  # type: ignore[no-untyped-def]
        a: str,
        b: int,
        c: float,
        d: bool,
        e: list[list[int]],
        f: int | None,
        g: list[Report],
        h: Any,
        i,
        j: datetime.datetime,
        k: list,  # type: ignore[type-arg]
    ) -> None: ...

    fields = {f.name: f for f in declarations(types)[types.name].params}
    assert {name: f.type for name, f in fields.items()} == {
        "a": "String",
        "b": "Long",
        "c": "Double",
        "d": "Boolean",
        "e": ArrayType(ArrayType("Long")),
        "f": "Json",
        "g": ArrayType("Json"),
        "h": "Json",
        "i": "Json",
        "j": "Json",
        "k": ArrayType("Json"),
    }
    assert [name for name, f in fields.items() if f.schema] == ["f", "g", "j"]
    assert fields["f"].schema == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert fields["j"].schema == {"type": "string", "format": "date-time"}


def test_a_default_without_json_form_raises_naming_its_parameter() -> None:
    @workflow(name="t.default")
    def default(a: Any = object()) -> None: ...  # noqa: B008

    with pytest.raises(AuthoringError, match=r"test_tracer.py:\d+\): the default of paramete.*'a'"):
        default.program()

    @workflow(name="t.default_misfit")
    def misfit(a: int = None) -> None: ...  # type: ignore[assignment] # noqa: RUF013

    with pytest.raises(AuthoringError, match="'a' should be int, was None"):
        misfit.program()


def test_an_unsupported_annotation_raises_naming_the_facet() -> None:
    @workflow(name="t.unknown")
    def unknown(a: Nowhere) -> None: ...  # type: ignore[name-defined] # noqa: F821

    class Odd: ...

    @workflow(name="t.odd_type")
    def odd(a) -> None: ...  # type: ignore[no-untyped-def]

    odd.fn.__annotations__["a"] = Odd
    with pytest.raises(AuthoringError, match=r"workflow 't.unknown' .*'Nowhere' is not defined"):
        unknown.program()
    with pytest.raises(AuthoringError, match="annotation of parameter 'a' is not a type that"):
        odd.program()


def test_two_functions_of_one_name_are_refused_with_both_lines() -> None:
    @facet(name="t.part")
    def one() -> None: ...

    @facet(name="t.part")
    def two() -> None: ...

    @workflow(name="t.both")
    def both() -> None:
        one()
        two()

    with pytest.raises(AuthoringError, match=r"'t.part' \(.*:\d+\) and facet 't.part' \(.*:\d+\)"):
        both.program()


def test_the_program_is_traced_once_and_equal_programs_have_equal_hashes() -> None:
    traces = []

    def body(url: str) -> str:
        traces.append(url)
        return fetch(url)

    one, other = workflow(name="t.w")(body), workflow(name="t.w")(body)
    assert one.program() is one.program()
    assert len(traces) == 1
    assert program_hash(one.program()) == program_hash(other.program())


def test_outside_a_trace_everything_is_plain_python() -> None:
    assert fetch("x") == "text of x"
    assert page_size.fn is page_size.definition.fn
    assert later.fn([1]) == [[1]]
    assert countdown([1, 2]) == [[1, 2]]


def test_many_starts_inside_a_trace_are_refused() -> None:
    @workflow(name="t.starter")
    def starter(url: str) -> None:
        page_size.start_many([{"url": url}])

    with pytest.raises(AuthoringError, match="call it like a function"):
        starter.program()
