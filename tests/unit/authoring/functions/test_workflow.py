"""``@workflow`` on a function that is run: its program, its calls, and the refusals."""

from __future__ import annotations

import asyncio
import datetime
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from flowengine import (
    AuthoringError,
    FunctionMisuse,
    Limit,
    Retry,
    attempt,
    changed,
    event_facet,
    facet,
    foreach,
    gather,
    now,
    random,
    sleep,
    sleep_until,
    step,
    uuid,
    wait_for,
    when,
    workflow,
)
from flowengine.authoring import (
    FunctionFacet,
    event_facet_named,
    set_task_list_source,
    workflow_named,
)
from flowengine.authoring.functions import Activation
from flowengine.program import link_program, program_hash
from flowengine.program.event_options import EventOptions
from flowengine.program.function_calls import CallKind
from flowengine.program.function_options import FunctionOptions
from tests.unit.authoring.functions.recorded import LIMITS, START, Recorded


@event_facet
def ask(question: str) -> str:
    return f"{question}?"


@event_facet(effects=False)
async def read(key: str) -> str:
    return f"the {key}"


@facet
def traced(n: int) -> int:
    return n


@workflow
def graph(n: int) -> int:
    return n


@workflow(version=2, task_list="agents", on_divergence="fail", deadline=60)
async def research(question: str, depth: int = 1) -> str:
    answer = ""
    for _ in range(depth):
        answer = await ask(answer or question)
    return answer


@workflow
def survey(questions: list[str]) -> list[str]:
    return foreach(questions, lambda question: research(question), limit=20)


def shouted(text: str) -> str:
    return text.upper()


def activated(flow: Any, **inputs: Any) -> Activation:
    return Activation(flow.activation.durable, inputs, step_id="step", started=START, limits=LIMITS)


def error_of(body: Callable[..., Any]) -> str:
    return str(Recorded(body).error["message"])


# --- The program ------------------------------------------------------------------------------


def test_a_function_is_a_workflow_with_one_step_whose_facet_has_the_version() -> None:
    plan = link_program(research.program())
    name = f"{__name__}.research"
    statement = plan.statements[f"{name}/0/research"]
    assert statement.target == f"{name}@2"
    assert statement.function is not None
    assert (statement.function.version, statement.function.on_divergence) == (2, "fail")
    assert statement.options == EventOptions(task_list="agents")
    assert plan.workflow(name).deadline == 60
    assert research.inputs("why") == {"question": "why", "depth": 1}


def test_a_graph_calls_a_function_as_one_step() -> None:
    plan = link_program(survey.program())
    found = [one for one in plan.statements.values() if one.function is not None]
    assert [one.target for one in found] == [f"{__name__}.research@2"]
    assert [one.name for one in found] == ["research"]
    assert f"{__name__}.research" not in plan.facets  # the step needs no other row


def test_workers_claim_activations_by_name_and_version() -> None:
    @workflow(name="t.claimed", version=2, on_divergence="fail")
    async def claimed() -> int:
        return 1

    found = event_facet_named("t.claimed@2")
    assert isinstance(found, FunctionFacet)
    assert found is claimed.activation
    assert found.function == FunctionOptions(2, on_divergence="fail")
    assert found.durable.name == "t.claimed@2"
    assert repr(found).startswith("<durable function 't.claimed@2' (")
    assert event_facet_named("t.claimed@1") is None


def test_the_program_has_a_digest_of_the_source_and_ignores_comments() -> None:
    def digest(text: str) -> str:
        import linecache

        file = f"<source {hash(text)}>"
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        names: dict[str, Any] = {"workflow": workflow, "__name__": __name__}
        exec(compile(text, file, "exec"), names)
        return program_hash(names["changing"].program())

    first = "@workflow(name='t.changing')\nasync def changing() -> int:\n    return 1\n"
    commented = first.replace("    return", "\n    # why\n    return")
    assert digest(first) == digest(commented)
    assert digest(first) != digest(first.replace("return 1", "return 2"))


def test_two_versions_stand_side_by_side_and_the_newest_is_started() -> None:
    @workflow(name="t.kept", version=2)
    async def newest() -> int:
        return 2

    @workflow(name="t.kept", version=1)
    async def older() -> int:
        return 1

    @workflow(name="t.kept", version=10)
    async def latest() -> int:
        return 10

    del older
    assert workflow_named("t.kept") is latest
    versions = (1, 2, 10)
    found = [event_facet_named(f"t.kept@{version}") for version in versions]
    assert [one.definition.fn.__name__ for one in found if one] == ["older", "newest", "latest"]
    assert newest.version == 2


def test_two_functions_of_one_name_and_version_are_refused() -> None:
    @workflow(name="t.twice")
    async def one() -> int:
        return 1

    with pytest.raises(AuthoringError, match=r"has the same name 't.twice@1'"):

        @workflow(name="t.twice")
        async def other() -> int:
            return 2


def test_an_alias_of_a_function_finds_its_activations_too() -> None:
    @workflow(name="t.moved", aliases=["t.before"], version=3)
    async def moved() -> int:
        return 1

    assert event_facet_named("t.before@3") is moved.activation
    assert workflow_named("t.before") is moved


def test_the_route_of_a_function_is_that_of_its_name() -> None:
    @workflow(name="t.routed", version=4)
    async def routed() -> int:
        return 1

    before = set_task_list_source({"t.routed": "agents"}.get)
    try:
        assert routed.activation.options.task_list == "agents"
    finally:
        set_task_list_source(before)
    assert routed.activation.options.task_list == "default"


# --- Calls ------------------------------------------------------------------------------------


def test_a_function_awaits_facets_workflows_and_functions() -> None:
    async def body() -> list[Any]:
        return [await ask("why"), await read.acall("book"), await graph(1), await research("x")]

    run = Recorded(body)
    run.end_all(lambda call: 1 if call.facet.endswith("graph") else "told")
    assert [(call.kind, call.facet.rpartition(".")[2]) for call in run.calls] == [
        (CallKind.EVENT, "ask"),
        (CallKind.EVENT, "read"),
        (CallKind.RUN, "graph"),
        (CallKind.RUN, "research"),
    ]
    assert [call.options.effects for call in run.calls] == [True, False, True, True]
    assert run.result == ["told", "told", 1, "told"]


def test_the_names_of_graphs_work_in_a_function() -> None:
    async def body() -> list[str]:
        first = now()
        await sleep(60)
        await sleep_until(first + datetime.timedelta(days=1))
        answer = await wait_for("approval", str)
        return [answer, str(uuid()), str(random()), str(changed("x")), await step(shouted, "x")]

    run = Recorded(body)
    run.end_all(lambda call: "yes")
    assert run.facets[:3] == ["sleep", "sleep_until", "wait_for"]
    assert run.calls[0].due == START + 60_000
    assert run.result[0] == "yes"


def test_options_of_a_call_are_those_of_a_step() -> None:
    async def body() -> str:
        careful = ask.with_options(retry=Retry(attempts=5)).named("careful")
        return await careful.within(30)("why")

    (call,) = Recorded(body).calls
    assert (call.options.retry.attempts, call.name, call.deadline) == (5, "careful", 30)


def test_a_body_is_awaited_as_plain_python_in_a_unit_test() -> None:
    async def main() -> list[str]:
        return [await research("a", depth=2), *await gather(ask.acall("b"), read.acall("c"))]

    assert asyncio.run(main()) == ["a??", "b?", "the c"]
    assert research("a") == "a?"  # where no loop runs, to its end


def test_facets_that_a_facet_calls_are_functions_in_a_plain_call_too() -> None:
    @event_facet(name="t.twice_asked")
    def twice(question: str) -> str:
        return ask(ask(question))

    @workflow(name="t.calls_twice")
    async def flow(question: str) -> str:
        return await twice(question)

    assert flow("a") == "a??"


# --- Refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"retry": Retry(attempts=3)},
            "retry is no option of a function .* its calls are",
        ),
        ({"timeout": 5}, "timeout is no option .*write deadline="),
        ({"limit": Limit("a", 1)}, "limit is no option .*event facets"),
        ({"version": 0}, "version=0 is not a whole number from 1"),
        ({"version": "two"}, "version='two' is not a whole number"),
        ({"on_divergence": "retry"}, "on_divergence='retry' is neither 'wait' nor 'fail'"),
        ({"task_list": ""}, "task_list='' is not the name of a task list"),
        ({"verison": 2}, "there is no option 'verison', the options are .*version"),
    ],
)
def test_unfit_options_of_a_function_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(AuthoringError, match=problem):

        @workflow(name="t.unfit", **options)
        async def unfit() -> int:
            return 1


def test_options_of_functions_are_refused_where_the_body_is_traced() -> None:
    with pytest.raises(AuthoringError, match=r"version, task_list: .*traced; write `async def`"):

        @workflow(name="t.traced", version=2, task_list="x")
        def unfit() -> int:
            return 1


def test_a_generator_is_refused() -> None:
    with pytest.raises(AuthoringError, match="yields: a facet returns one value"):

        @workflow(name="t.yields")
        async def body() -> AsyncIterator[int]:
            yield 1


def test_effects_that_are_no_truth_value_are_refused() -> None:
    with pytest.raises(AuthoringError, match="effects='no' is neither True nor False"):

        @event_facet(name="t.effects", effects="no")  # type: ignore[call-overload]
        def unfit() -> int:
            return 1


def test_constructs_of_traced_bodies_are_refused_with_the_python_to_write() -> None:
    async def loops() -> Any:
        return foreach([1], lambda n: n)

    async def branches() -> Any:
        return when(True, lambda: 1, otherwise=lambda: 2)

    async def catches() -> Any:
        return attempt(lambda: 1, catch=lambda error: 2)

    assert "await gather(*(facet(item) for item in items), limit=…)" in error_of(loops)
    assert "this function is run: write `if condition: …`" in error_of(branches)
    assert "write `try: … except SomeError: …`" in error_of(catches)


def test_a_plain_facet_is_refused() -> None:
    async def body() -> int:
        return await traced(1)

    assert "is traced and has no code to run: make it an @event_facet" in error_of(body)


def test_a_call_that_is_never_awaited_is_an_error_with_its_line() -> None:
    async def body() -> str:
        ask("why")
        return await ask("how")

    assert "ask is called and never awaited, so nothing calls it: write `await ask(…)`" in error_of(
        body
    )
    assert "test_workflow.py:" in error_of(body)


def test_a_call_that_is_returned_and_never_awaited_is_an_error_with_its_cure() -> None:
    async def body() -> str:
        return ask("why")

    assert "ask is called and never awaited, so nothing calls it" in error_of(body)


def test_an_unawaited_call_as_argument_is_refused() -> None:
    async def body() -> str:
        return await ask(ask("why"))

    assert "gets a call that is not awaited, of" in error_of(body)


def test_arguments_without_json_form_are_refused() -> None:
    async def body() -> str:
        return await ask(object())  # type: ignore[arg-type]

    assert "cannot take these arguments" in error_of(body)


def test_asyncio_run_inside_is_refused_with_the_cure() -> None:
    async def other() -> int:
        return 1

    async def body() -> int:
        return asyncio.run(other())

    assert "runs in a loop already: await the coroutine" in error_of(body)


def test_a_start_inside_is_refused_because_each_replay_would_start_a_run() -> None:
    async def body() -> str:
        return research.start("why").result()

    async def many() -> None:
        research.start_many([{"question": "why"}])

    assert "each replay would start one more; await its call" in error_of(body)
    assert "each replay would start one more; await its call" in error_of(many)


def test_acall_in_a_traced_body_is_refused() -> None:
    @workflow(name="t.awaits")
    def flow() -> Any:
        return ask.acall("why")

    with pytest.raises(AuthoringError, match="this body is traced: call it like a function"):
        flow.program()


def test_a_worker_that_knows_no_activations_refuses_to_run_one() -> None:
    with pytest.raises(FunctionMisuse, match="only its activations run"):
        research.activation.run({"question": "why"})


def test_importing_flowengine_and_decorating_a_function_loads_no_asyncio() -> None:
    script = (
        "import sys\n"
        "from flowengine import workflow, sleep\n"
        "@workflow\nasync def f(): await sleep(1)\n"
        "f.program()\n"
        "print('asyncio' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
