"""Documents and texts of AFL call a version of a durable function by its name with @ and number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flowengine import event_facet, workflow
from flowengine.afl import compile_text
from flowengine.authoring import workflow_of_version
from flowengine.documents import compile_document
from flowengine.errors import InvalidDocument, InvalidProgram
from flowengine.testing import Flow
from flowengine.worker.document_folder import _program_of, declared_facet
from tests.registries import empty_registry

TASK = "tasks:\n  a: {call: shop.research@1, with: {question: why}%s}\n"
TEXT = """
namespace shop {
  event facet research@1(question: String) => (text: String)
  workflow Ask(question: String) => (text: String) andThen {
    found = research@1(question = $.question)
    yield Ask(text = found.text)
  }
}
"""


@pytest.fixture
def flow() -> Iterator[Flow]:
    with empty_registry(), Flow() as made:
        ask = event_facet(name="shop.ask")(lambda question: f"{question}?")

        @workflow(name="shop.research", version=1)
        async def before(question: str) -> str:
            return f"{await ask(question)} (1)"

        @workflow(name="shop.research", version=2)
        async def research(question: str) -> str:
            return f"{await ask(question)} (2)"

        yield made


def run_of(flow: Flow, program: Any, name: str, inputs: dict[str, Any]) -> Any:
    run = flow.engine.start(program, name, inputs)
    flow.settle()
    return run


@pytest.mark.parametrize("is_known", [True, False], ids=["code is here", "code is elsewhere"])
def test_a_document_calls_a_version(flow: Flow, is_known: bool) -> None:
    find = declared_facet if is_known else lambda name: None
    text = TASK % "" + "result: ${tasks.a.result}\n"
    compiled = compile_document(text, "w", "w.yml", find_facet=find)
    run = run_of(flow, compiled.program, "w", {})
    assert run.result(timeout=0) == "why? (1)"
    (function,) = [step for step in run.steps() if step.facet == "shop.research@1"]
    assert [step.path for step in run.steps() if step.parent == function.key] == ["w.a.ask#0"]


def test_a_function_awaits_the_version_that_its_code_names(flow: Flow) -> None:
    before, research = (workflow_of_version("shop.research", version) for version in (1, 2))
    assert before is not None
    assert research is not None

    @workflow(name="shop.asks")
    async def asks() -> list[str]:
        both = [await before.acall("why"), await before.named("again").acall("how")]
        return [*both, await research.acall("who"), await research.named("last").acall("when")]

    run = asks.start()
    flow.settle()
    assert run.result(timeout=0) == ["why? (1)", "how? (1)", "who? (2)", "when? (2)"]


def test_a_text_of_afl_declares_and_calls_a_version(flow: Flow) -> None:
    run = run_of(flow, compile_text(TEXT, "shop.afl"), "shop.Ask", {"question": "who"})
    assert run.info().outputs == {"text": "who? (1)"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (TASK % ", retry: {attempts: 2}", "`shop.research@1` is not tried as a whole; give it to"),
        (TASK % ", timeout: 5s", "`timeout` belongs to the calls of a durable function"),
        (
            (TASK % "").replace("@1", ""),
            "`shop.research` is a workflow, no event facet: write `workflow: shop.research`, or "
            "`call: shop.research@2` for this version of it",
        ),
        ((TASK % "").replace("@1", "@one"), "is no name of an event facet: write it as"),
        ((TASK % "").replace("@1", "@01"), "is no name of an event facet: write it as"),
        ((TASK % "").replace("@1", "@0"), "version=0 is not a whole number from 1 to 1,000,000"),
    ],
)
def test_a_document_names_mistakes_about_versions(flow: Flow, text: str, problem: str) -> None:
    with pytest.raises(InvalidDocument) as raised:
        compile_document(text, "w", "w.yml", find_facet=declared_facet, find_workflow=_program_of)
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("event facet research@1", "facet research@1"), "a durable function is an EventFacetDecl"),
        (("found = research@1", "found = research@2"), "unknown facet 'research@2'"),
        (("event facet research@1", "event facet research@0"), "version=0 is not a whole number"),
        *(
            (
                ("$.question)", f"$.question) with {mixin}"),
                f"{name} has no effect on 'shop.research@1'",
            )
            for name, mixin in (
                ("Retry", "flowengine.Retry(attempts = 3)"),
                ("Timeout", "Timeout(seconds = 3)"),
                ("Limit", 'flowengine.Limit(key = "a", concurrency = 1)'),
                ("Cache", "flowengine.Cache()"),
            )
        ),
        (
            ("(text: String)\n", "(text: String) with flowengine.Retry(attempts = 3)\n"),
            "a durable function is not tried as a whole; give it to the event facets that it calls",
        ),
    ],
)
def test_a_text_of_afl_names_mistakes_about_versions(change: tuple[str, str], problem: str) -> None:
    with pytest.raises(InvalidProgram) as raised:
        compile_text(TEXT.replace(*change), "shop.afl")
    assert problem in str(raised.value)
