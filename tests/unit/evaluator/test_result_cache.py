"""The result cache of event facets: which steps complete with an earlier result."""

from __future__ import annotations

from typing import Any

from flowengine.afl.compiler import compile_text
from flowengine.evaluator.records import CachedResult
from flowengine.evaluator.result_cache import is_fresh
from flowengine.program.event_options import Cache
from flowengine.program.serializer import write_program
from tests.builders import after, block, event, program, step, workflow
from tests.unit.evaluator.in_memory_run import MemoryRun

CACHE = {"cache": {"key": "rates:{x}", "max_age": 60}}
FIRST, SECOND = step("a", "Rate", x=1), step("b", "Rate", x=1)


def rates(*statements: Any, options: Any = CACHE, returns: str = "y") -> Any:
    declared = event("Rate", "x", returns, options=options)
    return program(declared, workflow("W", "", "", block(*statements)))


def entry(**changes: Any) -> CachedResult:
    values: dict[str, Any] = {"id": "e", "key": "k", "tenant": "", "facet": "Rate", "run_id": "r"}
    values |= {"path": "W.a", "returns": {"y": 1}, "created": 1_000, "expires": 61_000}
    return CachedResult(**values | changes)


def kept(run: MemoryRun) -> dict[str, CachedResult]:
    """All results that the commits of a run add to the cache."""
    return {key: one for commit in run.commits for key, one in commit.cached_results.items()}


def test_a_result_is_fresh_until_the_shorter_age_has_passed() -> None:
    assert is_fresh(entry(), Cache("k", 60), 60_999)
    assert not is_fresh(entry(), Cache("k", 60), 61_000)
    assert not is_fresh(entry(), Cache("k", 5), 6_000), "the age of the program that reads"
    assert not is_fresh(entry(expires=2_000), Cache("k", 60), 2_000), "the age when it was kept"


def test_a_later_step_of_the_run_completes_with_the_result_of_an_earlier_one() -> None:
    run = MemoryRun(rates(FIRST, after(step("b", "Rate", x=1), "a")))
    changes = run.succeed("W.a", y=7)
    (hit,) = changes.reused_results
    assert (hit.path, hit.source.path, hit.source.returns) == ("W.b", "W.a", {"y": 7})
    assert run.step("W.b").returns == {"y": 7}
    assert run.view.state == "COMPLETED"
    assert len(run.tasks) == 1


def test_two_identical_steps_that_begin_together_both_run() -> None:
    run = MemoryRun(rates(FIRST, SECOND))
    assert len(run.outstanding()) == 2
    uncached = MemoryRun(rates(FIRST, SECOND, options={}))
    assert run.trips == uncached.trips + 1, "one query, however many steps ask"


def test_keys_of_other_arguments_and_other_types_are_others() -> None:
    run = MemoryRun(rates(FIRST, step("b", "Rate", x=2)))
    for task in run.outstanding():
        run.succeed(task.step_path, y=1)
    other = MemoryRun(rates(FIRST, returns="y:Long"))
    other.succeed("W.a", y=1)
    assert len(kept(run) | kept(other)) == 3


def test_a_failed_step_leaves_nothing_in_the_cache() -> None:
    run = MemoryRun(rates(FIRST))
    run.fail("W.a", retry=False)
    assert kept(run) == {}


def test_a_retried_step_runs_again_although_its_result_is_in_the_cache() -> None:
    run = MemoryRun(rates(FIRST, after(step("b", "Rate", x=1), "a")))
    run.succeed("W.a", y=7)
    run.cached = kept(run)
    assert run.ask("retry", from_step="W.b") == ""
    assert [task.step_path for task in run.outstanding()] == ["W.b"]
    run.succeed("W.b", y=8)
    assert [one.returns for one in run.commits[-1].cached_results.values()] == [{"y": 8}]


def test_a_key_without_a_single_value_fails_the_step() -> None:
    run = MemoryRun(rates(step("a", "Rate", x=[1, 2])))
    assert run.states()["W.a"] == "Error"
    error = run.step("W.a").error
    assert error is not None
    assert error["type"] == "InvalidCacheKey"
    assert error["message"] == "a cache needs 'x' in its key, which is no single value"


def test_a_step_that_uses_a_result_takes_no_slot_of_a_limit() -> None:
    options = {**CACHE, "limit": [{"key": "api", "count": 1}]}
    run = MemoryRun(rates(FIRST, after(step("b", "Rate", x=1), "a"), options=options))
    run.succeed("W.a", y=7)
    assert [task.step_path for task in run.tasks.values() if task.queue] == ["W.a"]


def test_a_mixin_of_afl_text_sets_the_cache() -> None:
    text = """
event facet Rate(x: Long) => (y: Long) with Cache(key = "rates:{x}", max_age = 60)
workflow W() andThen {
    a = Rate(x = 1)
    b = Rate(x = a.y)
}
"""
    run = MemoryRun(write_program(compile_text(text)))
    run.succeed("W.a", y=1)
    assert run.step("W.b").returns == {"y": 1}
    assert run.view.state == "COMPLETED"
