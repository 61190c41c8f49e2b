"""Documents become programs, and each problem is told with its place."""

from __future__ import annotations

import itertools
from typing import Any

import jsonschema
import pytest

from flowengine.documents import (
    MAX_BYTES,
    compile_document,
    document_schema,
    link_document,
    name_of,
    read_document,
)
from flowengine.documents.order import Graph
from flowengine.documents.problems import Place, Problems
from flowengine.documents.yaml_nodes import plain_scalar
from flowengine.engine.publication_drafts import input_schema
from flowengine.errors import InvalidDocument, InvalidInputs
from flowengine.program import link_program, nodes, write_program
from flowengine.program.types import check_inputs
from flowengine.testing import run_program

DAILY = """\
schedule: {cron: "30 2 * * *", timezone: Europe/Berlin, overlap: skip}
inputs: {day: {type: date, default: "${tick.date}"}, n: {type: integer, default: 3}}
concurrency: {tasks: 4}
tasks:
  fetch: {call: shop.fetch, with: {url: "x/${inputs.day}/${inputs.n + 1}", n: "${inputs.n}"}}
  load:  {call: shop.load, with: {rows: "${tasks.fetch.result.rows}"}}
  tidy:  {call: shop.tidy, depends: [load], on: ended}
result: "${tasks.load.result}"
"""


def problems(text: str | bytes, name: str = "w") -> list[str]:
    with pytest.raises(InvalidDocument) as caught:
        compile_document(text, name, "w.yml")
    return [str(problem) for problem in caught.value.problems]


def outcome(text: str, inputs: dict[str, Any], **handlers: Any) -> Any:
    compiled = compile_document(text, "etl.daily")
    named = {f"shop.{name}": handler for name, handler in handlers.items()}
    return run_program(write_program(compiled.program), "etl.daily", inputs, named)


def test_a_document_runs_with_types_kept_alone_and_joined_inside_a_text() -> None:
    seen: list[Any] = []

    def fetch(data: dict[str, Any]) -> dict[str, Any]:
        seen.append(data)
        return {"result": {"rows": [1, 2]}}

    done = outcome(
        DAILY,
        {"day": "2026-11-15"},
        fetch=fetch,
        load=lambda data: {"result": len(data["rows"])},
        tidy=lambda _: {"result": None},
    )
    assert done.status == "COMPLETED"
    assert done.outputs == {"result": 2}
    assert seen == [{"url": "x/2026-11-15/4", "n": 3}]


def test_a_task_after_the_end_of_another_runs_although_that_failed() -> None:
    ran: list[str] = []

    def fail(_: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("no rows")

    def tidy(_: dict[str, Any]) -> dict[str, Any]:
        ran.append("tidy")
        return {"result": None}

    done = outcome(
        DAILY,
        {"day": "2026-11-15"},
        fetch=lambda _: {"result": {"rows": []}},
        load=fail,
        tidy=tidy,
    )
    assert done.status == "FAILED"
    assert ran == ["tidy"]


def test_an_error_of_a_run_names_an_input_in_no_form_of_one_front_end() -> None:
    """A program of any front end is the same program: a run knows no YAML, and no AFL."""
    text = "inputs: {x: map}\ntasks: {a: {call: shop.f, with: {v: '${inputs.x.nope}'}}}\n"
    done = outcome(text, {"x": {}}, f=lambda _: {"result": None})
    assert "input x has no 'nope'" in str(done.error)


def test_a_dollar_before_an_expression_is_written_as_one() -> None:
    text = """inputs: {x: integer}\ntasks: {a: {wait: 0s}}\nresult: '${"$"}${inputs.x} or $5'\n"""
    assert outcome(text, {"x": 5}).outputs == {"result": "$5 or $5"}


def test_a_schedule_fills_the_inputs_whose_default_is_a_value_of_the_tick() -> None:
    (schedule,) = compile_document(DAILY, "etl.daily").schedules
    assert schedule.as_json() == {
        "cron": "30 2 * * *",
        "timezone": "Europe/Berlin",
        "overlap": "skip",
        "inputs": {"day": {"$tick": "date"}},
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("2026-11-15", "2026-11-15"),
        ("012", 12),
        ("0o17", 15),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("true", True),
        ("~", None),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    found = plain_scalar(text)
    assert (type(found), found) == (type(value), value)


TASK = "tasks:\n  a: {call: x.f}\n"


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("", "1:1", "the document is empty"),
        ("[1]", "1:1", "a document is a map with the key `tasks`, found a list"),
        ("name: x\n", "1:1", "the key `tasks` is missing"),
        ("tasks: {}\n", "1:8", "at least one entry"),
        ("tasks: [\n", "2:1", "this is not YAML"),
        (f"{TASK}---\n{TASK}", "3:1", "stream, but found another document"),
        (f"{TASK}  a: {{call: x.g}}\n", "3:3", "the key `a` is given twice; it is also in line 2"),
        ("tasks:\n  a: {call: x.f, dependencies: [b]}\n", "2:18", "did you mean `depends`?"),
        ("tasks:\n  a: {call: x.f, needs: [b]}\n", "2:18", "did you mean `depends`?"),
        ("tasks:\n  a: {call: x.f, depends: [b]}\n", "2:28", "there is no task `b`"),
        ("tasks:\n  a: {call: x.f, depends: [a]}\n", "2:28", "depends on itself"),
        ("tasks:\n  a: {call: x.f, on: ended}\n", "2:18", "`on` needs `depends`"),
        ("tasks:\n  a: {}\n", "2:3", "does nothing"),
        ("tasks:\n  a: {call: x.f, wait: 1s}\n", "2:18", "`call` and `wait`"),
        ("tasks:\n  a: {wait: 1s, timeout: 1s}\n", "2:17", "write `deadline`"),
        ("tasks:\n  a: {wait: soon}\n", "2:13", "expected a number with a unit"),
        ("tasks:\n  a: {call: x.f, timeout: no}\n", "2:27", "expected a number with a unit"),
        ("tasks:\n  a: {call: x.f, retry: {attempts: 0}}\n", "2:36", "greater than or equal to 1"),
        ("tasks:\n  a: {call: 5}\n", "2:13", "expected text, found the number 5"),
        ("tasks:\n  a: !Other {call: x.f}\n", "2:6", "unknown tag `!Other`"),
        ("tasks:\n  a: {run: []}\n", "2:12", "at least one entry"),
        ('tasks:\n  a: {run: ["", x]}\n', "2:13", "expected a program: its name is empty"),
        ("tasks:\n  a: {run: [ls, [x]]}\n", "2:17", "expected text, or an expression"),
        ("tasks:\n  a: {run: [ls], env: {a-b: 1}}\n", "2:24", "no name of a variable"),
        ("tasks:\n  a: {call: x.f, env: {a: 1}}\n", "2:18", "`env` belongs to run and sh and uv"),
        ("tasks:\n  a: {sh: 'echo ${tasks.a.stdout}'}\n", "2:17", 'and "$name" in the text'),
        ("tasks:\n  a: {sh: ls}\nresult: '${tasks.a.stdot}'\n", "3:10", "did you mean `stdout`?"),
        ("tasks:\n  a: {workflow: other}\n", "2:17", "there is no workflow `other`"),
        ("concurrency: {runs: 2}\ntasks:\n  a: {workflow: w}\n", "3:17", "wait for its own `runs`"),
        (f"{TASK}concurrency: {{tasks: {10**40}}}\n", "3:22", "less than or equal to 1000000000"),
        (
            "tasks:\n  a: {call: x.f, retry: 1000000001}\n",
            "2:25",
            "less than or equal to 1000000000",
        ),
        ("tasks:\n  a: {call: x.f, retry: {factor: 1e300}}\n", "2:34", "or equal to 1000000000"),
        ("tasks:\n  a: {call: x.f, retry: {first_wait: 1e300}}\n", "2:38", "a century at most"),
        (f"tasks:\n  a: {{call: x.f, retry: {{max_wait: 1{'0' * 400}}}}}\n", "2:36", "a century"),
        ("tasks:\n  a: {call: x.f, timeout: 40000d}\n", "2:27", "a century at most"),
        (f"tasks:\n  a: {{call: x.f, timeout: {'9' * 400}d}}\n", "2:27", "a century at most"),
        ("tasks:\n  a: {call: '${inputs.x}'}\n", "2:13", "an expression cannot choose it"),
        ("tasks:\n  a: {call: 'x f'}\n", "2:13", "`x f` is no name of an event facet"),
        ("tasks:\n  a: {wait: {until: nonsense}}\n", "2:21", "'nonsense' is no time"),
        ("tasks:\n  a: {wait: {until: [1]}}\n", "2:21", "[1] is no time"),
        ("tasks:\n  a: {wait: {answer: ''}}\n", "2:22", "the name of an answer is a text"),
        ("tasks:\n  a: {wait: {answer: x, timeout: 0}}\n", "2:34", "greater than 0"),
        (f"{TASK}inputs: {{d: {{type: date, default: 2026-99-99}}}}\n", "3:35", "is no date"),
        (f"{TASK}inputs: {{d: {{type: date, default: soon}}}}\n", "3:35", "is no date"),
        (f"{TASK}concurrency: {{runs: 0}}\n", "3:21", "greater than or equal to 1"),
        (f"{TASK}schedule: 1 2 3\n", "3:11", "the cron expression"),
        (f'{TASK}schedule: {{cron: "61 * * * *"}}\n', "3:18", "61"),
        (f"{TASK}schedule: {{every: 1h, timezone: Berlin}}\n", "3:33", "Europe/Berlin"),
        (f"{TASK}inputs: {{d: {{default: '${{tick.date}}'}}}}\n", "3:23", "there is no `schedule`"),
        (f"{TASK}inputs: {{d: {{type: integer, default: x}}}}\n", "3:38", "default does not fit"),
        (f"{TASK}result: '${{tasks.a.result +}}'\n", "3:28", "expected a value"),
        (f"{TASK}result: '${{tasks.b.result}}'\n", "3:10", "there is no task `b`"),
        (f"{TASK}result: '${{a.result}}'\n", "3:10", "did you mean `tasks.a.result`?"),
        (f"{TASK}result: '${{tasks.a'\n", "3:10", "no closing brace"),
        (f"{TASK}result: .inf\n", "3:9", "not a number that JSON can write"),
        (f"{TASK}result: *unknown\n", "3:9", "this is not YAML"),
        (f"{TASK}result: &a [*a]\n", "3:13", "contains itself"),
        (f"{TASK}result: {'[' * 60}{']' * 60}\n", "3:58", "nested too deep"),
    ],
)
def test_a_problem_is_reported_with_its_place(text: str, place: str, what: str) -> None:
    found = problems(text)
    assert any(each.startswith(f"w.yml:{place}: ") and what in each for each in found), found


def test_all_problems_are_reported_in_one_pass() -> None:
    text = """\
schedule: {cron: "30 2 * *", timezone: Europa/Berlin}
inputs: {day: {typ: date}}
tasks:
  a: {call: shop.fetch, dependencies: [b], with: {x: "${tasks.bb.result}"}}
  b: {wait: 1x, depends: [nope]}
  c: {}
  a: {call: x.y}
result: "${tasks.a.result +}"
"""
    found = [each.split(": ")[0].removeprefix("w.yml:") for each in problems(text)]
    expected = ["1:18", "1:40", "2:16", "4:25", "4:55", "5:13", "5:27", "6:3", "7:3", "8:28"]
    assert found == expected


def test_a_cycle_is_reported_at_the_place_that_closes_it() -> None:
    text = """\
tasks:
  a: {call: x.f, with: {v: "${tasks.b.result}"}}
  b: {call: x.f, with: {v: 1}, depends: a}
"""
    assert problems(text) == ["w.yml:3:41: the tasks a → b → a wait for each other in a cycle"]


def test_the_search_for_a_cycle_compares_no_task_with_all_others() -> None:
    compared = 0

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    names = [Name(f"t{n}") for n in range(1_000)]
    edges: dict[str, dict[str, Place]] = {
        name: {after: Place()} for name, after in itertools.pairwise(names)
    }
    assert not Graph(Problems(""), edges).has_cycle()
    assert compared < 10 * len(names)


def test_a_problem_names_some_of_many_tasks() -> None:
    tasks = "".join(f"  t{n}: {{call: x.y}}\n" for n in range(100))
    with pytest.raises(InvalidDocument) as caught:
        compile_document(f"tasks:\n{tasks}  z: {{call: x.y, depends: [nothing-like-it]}}\n", "w")
    assert str(caught.value).endswith("t18, t19 and 81 more")


def test_aliases_that_multiply_are_refused() -> None:
    rows = ["result:", "  a: &a [x, x, x, x, x, x, x, x, x]"]
    rows += [
        f"  {b}: &{b} [{', '.join([f'*{a}'] * 9)}]"
        for a, b in zip("abcdefg", "bcdefgh", strict=True)
    ]
    (found,) = problems(f"{TASK}{chr(10).join(rows)}\n")
    assert "aliases repeat more than 10,000 values" in found


def test_a_document_above_a_mebibyte_is_refused_and_an_alias_is_not() -> None:
    assert "1,048,576" in problems("#" * (MAX_BYTES + 1))[0]
    compile_document("tasks:\n  a: {call: x.f, with: &w {n: 1}}\n  b: {call: x.f, with: *w}\n", "w")


def test_bytes_that_are_not_utf_8_are_reported_with_their_place() -> None:
    assert problems(b"tasks:\n  \xff") == ["w.yml:2:3: the byte 0xff is not UTF-8"]


def test_the_arguments_of_a_known_facet_are_checked() -> None:
    facet = nodes.FacetDeclaration(
        nodes.FacetKind.EVENT, "f", params=(nodes.Field("n", "Long"),), returns=()
    )
    with pytest.raises(InvalidDocument) as caught:
        compile_document(
            "tasks:\n  a: {call: x.f, with: {m: 1}}\n", "w", "w.yml", find_facet={"x.f": facet}.get
        )
    assert "w.yml:2:3: " in str(caught.value)
    assert "'m'" in str(caught.value)


def test_calls_of_an_unknown_facet_with_different_arguments_are_refused() -> None:
    text = "tasks:\n  a: {call: x.f, with: {m: 1}}\n  b: {call: x.f}\n"
    assert problems(text)[0].startswith("w.yml:3:13: the calls of `x.f` have different arguments")


def test_a_task_starts_the_workflow_of_another_document() -> None:
    outer = read_document(
        "tasks:\n  a: {workflow: in.ner, with: {n: 2}}\nresult: '${tasks.a.result}'", "outer"
    )
    inner = read_document(
        "inputs: {n: integer}\ntasks:\n  b: {call: x.f, with: {n: '${inputs.n}'}}\n", "in.ner"
    )
    documents = {"outer": outer, "in.ner": inner}
    compiled = link_document(outer, documents)
    declared = [
        d.name for n in compiled.program.declarations for d in getattr(n, "declarations", [n])
    ]
    assert sorted(declared) == ["child", "f", "ner", "outer"]


def test_documents_that_start_each_other_with_one_place_are_refused() -> None:
    text = "concurrency: {{runs: 1}}\ntasks: {{a: {{workflow: {}}}}}\n"
    both = {name: read_document(text.format(other), name) for name, other in ("ab", "ba")}
    with pytest.raises(InvalidDocument, match=r"column 23: `a` starts itself through `b`, and"):
        link_document(both["a"], both)
    with pytest.raises(InvalidDocument):
        link_document(both["b"], both)


def test_the_description_of_an_input_is_in_the_schema_that_the_catalogue_shows() -> None:
    inputs = (
        "{day: {type: date, description: Of sale.}, n: {type: integer, description: Rows.}, x: any}"
    )
    text = f"inputs: {inputs}\ntasks: {{a: {{call: x.y, with: {{n: '${{inputs.n}}'}}}}}}\n"
    plan = link_program(compile_document(text, "w").program)
    shown = input_schema(plan.workflow("w"))["properties"]
    assert shown["n"] == {"type": ["integer", "null"], "description": "Rows."}
    assert (shown["day"]["description"], shown["x"]) == ("Of sale.", {})
    given = {"day": "2026-11-15", "n": "many", "x": None}
    with pytest.raises(InvalidInputs, match="input 'n': expected Long, found 'many'"):
        check_inputs(plan.workflow("w"), given, plan.limits)


def test_names_that_are_no_identifiers_are_indexes() -> None:
    text = """\
tasks:
  get-it: {call: shop.fetch}
result: '${tasks["get-it"]["result"]["rows"][0]} of $${x}'
"""
    done = outcome(text, {}, fetch=lambda _: {"result": {"rows": [7]}})
    assert done.outputs == {"result": "7 of ${x}"}


ORIGINAL = """\
name: Test Workflow
description: two tasks
cron: "0 30 2 * * *"
start_time: 2025-01-01T00:00:00+00:00
tasks:
  first:
    name: First
    config: !Subprocess
      cmd: echo
      args: [hello]
  second:
    name: Second
    depends: [first]
    config: !UvPython
      script_path: jobs/clean.py
      packages: [polars]
"""


def test_the_original_form_is_read() -> None:
    compile_document(ORIGINAL, "w")
    wrong = ORIGINAL.replace("cmd:", "command:").replace("script_path", "path")
    found = [each.split(": ")[0] for each in problems(wrong)]
    assert found == ["w.yml:8:13", "w.yml:9:7", "w.yml:14:5", "w.yml:15:7"]
    (schedule,) = read_document(ORIGINAL, "w").schedules
    assert schedule.as_json() == {"cron": "0 30 2 * * *", "start": "2025-01-01T00:00:00+00:00"}


@pytest.mark.parametrize(
    ("path", "name"),
    [("etl/daily.yml", "etl.daily"), ("a.draft.yml", "a.draft"), ("a/b/c.yaml", "a.b.c")],
)
def test_the_name_of_a_workflow_is_its_path_with_dots(path: str, name: str) -> None:
    assert name_of(path) == name


def test_the_schema_for_editors_accepts_what_is_compiled_and_refuses_unknown_keys() -> None:
    schema = document_schema()
    good: dict[str, Any] = {
        "schedule": "@daily",
        "inputs": {"day": "date"},
        "tasks": {"a": {"call": "x.f", "with": {"n": 1}, "retry": 3, "timeout": "10m"}},
    }
    jsonschema.validate(good, schema)
    good["tasks"]["a"]["dependencies"] = ["b"]
    with pytest.raises(jsonschema.ValidationError, match="dependencies"):
        jsonschema.validate(good, schema)
