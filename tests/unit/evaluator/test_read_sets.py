"""Prefetched read sets hold the rows that an evaluation reads, and few others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given as drawn

from flowengine.errors import InvalidProgram
from flowengine.evaluator import IterationChanges, Missing, Snapshot, Step, evaluate, lacking
from flowengine.evaluator.rows_above import rows_above
from flowengine.evaluator.states import ObjectType
from flowengine.evaluator.triggers import Failed, Outcome, Started, Succeeded, Trigger
from flowengine.store import codec
from flowengine.testing.program_runner import NoAnswer
from tests.builders import block, event, facet, given, listed, of, program, step, to, workflow
from tests.corpus import CASES, answers
from tests.unit.evaluator import in_memory_run, test_laws
from tests.unit.evaluator.in_memory_run import MemoryRun
from tests.unit.evaluator.programs_strategy import Case, case_of, cases
from tests.unit.evaluator.test_laws import laws, play, seeds


class RecordedRows(dict[str, Step | None]):
    """Rows that record which of them were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Step | None:
        row = super().__getitem__(key)
        self.read.add(key)
        return row


class PrefetchedRun(MemoryRun):
    """A run that counts how well each read set fits the evaluation after it."""

    counts: Counter[str]

    def __init__(self, *given: Any, **options: Any) -> None:
        self.counts = Counter()
        super().__init__(*given, **options)

    def consume_inbox(self, *triggers: Trigger) -> IterationChanges:
        if not any(isinstance(trigger, Started) for trigger in triggers):
            self._count(triggers)
        return super().consume_inbox(*triggers)

    def _count(self, triggers: tuple[Trigger, ...]) -> None:
        rows = RecordedRows()
        snapshot = Snapshot(steps=rows)
        while missing := lacking(self.plan, self.view, snapshot, triggers, self.now):
            rows |= {key: self._find(key) for key in missing.steps}
        prefetched, rows.read = set(rows), set()
        rounds = 0
        while True:
            found = evaluate(self.plan, self.view, snapshot, triggers, self.now, prefetched=True)
            if not isinstance(found, Missing):
                break
            rounds += bool(found.steps)
            rows |= {key: self._find(key) for key in found.steps}
            bodies = {digest: codec.load(self.payloads[digest]) for digest in found.payloads}
            snapshot.payloads |= bodies
        self.counts += Counter(
            evaluations=1,
            sufficient=int(rounds == 0),
            rounds=rounds,
            read=len(rows.read),
            surplus=len(prefetched - rows.read),
        )


def corpus_runs() -> Iterator[PrefetchedRun]:
    for case in CASES.values():
        try:
            run = PrefetchedRun(case["program"], case.get("inputs", {}), workflow=case["workflow"])
        except InvalidProgram:
            continue
        by_facet = answers(case)

        def answer(task: Any, by_facet: Any = by_facet) -> Outcome | None:
            try:
                return Succeeded(by_facet[task.name](task.data))
            except RuntimeError as error:
                return Failed({"type": "RuntimeError", "message": str(error)})
            except (KeyError, NoAnswer):
                return None

        run.answer_all(answer)
        yield run


def test_in_the_corpus_nearly_every_evaluation_needs_no_row_beyond_its_read_set() -> None:
    counts: Counter[str] = sum((run.counts for run in corpus_runs()), Counter())
    assert counts["evaluations"] > 250
    assert counts["sufficient"] >= 0.97 * counts["evaluations"]
    assert counts["rounds"] <= 1.2 * (counts["evaluations"] - counts["sufficient"])


def test_in_the_corpus_read_sets_load_few_rows_that_are_not_read() -> None:
    counts: Counter[str] = sum((run.counts for run in corpus_runs()), Counter())
    assert counts["surplus"] <= counts["evaluations"], "one row an evaluation"
    assert counts["surplus"] <= 0.35 * counts["read"]


def test_a_long_list_begins_its_items_without_asking_for_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: set[str] = set()

    def recorded(*given: Any, **options: Any) -> IterationChanges | Missing:
        found = evaluate(*given, **options)
        asked.update(found.steps if isinstance(found, Missing) else ())
        return found

    monkeypatch.setattr(in_memory_run, "evaluate", recorded)
    steps = step("a", "E", x=given("i")), step("b", "E", x=of("a.y"))
    yielded = [to("W", ys=listed(of("b.y")))]
    flow = workflow("W", "xs", "ys", block(*steps, yields=yielded, foreach=("i", given("xs"))))
    run = MemoryRun(program(event("E", "x", "y"), flow), {"xs": ["a long word"] * 1_200})
    run.settle()
    assert len(run.outstanding()) == 1_200
    assert asked
    assert [
        key for key in asked if key in run.rows and run.rows[key]["object_type"] == ObjectType.ITEM
    ] == []


def test_in_dense_random_programs_most_read_sets_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_laws, "MOST_ROWS", 10_000)
    # Each of these evaluations lets a whole block of asserts, logs and plain facets end at once,
    # which no read set foresees in full; a second round suffices for most of the rest.
    counts: Counter[str] = Counter()
    for seed in range(40):
        run = play(case_of(seed * 7919, 4, 5, 0), seed, make=PrefetchedRun)
        assert isinstance(run, PrefetchedRun)
        counts += run.counts
    assert counts["sufficient"] >= 0.6 * counts["evaluations"]
    assert counts["rounds"] <= counts["evaluations"]
    assert counts["surplus"] <= 3 * counts["evaluations"]


@laws
@drawn(cases(), seeds)
def test_the_rows_above_a_row_are_read_off_its_path(case: Case, seed: int) -> None:
    run = play(case, seed)
    root = run.plan.workflow("W")
    for key in run.rows:
        row = run._step(key)
        expected = []
        above = row
        while above.parent is not None:
            above = run._step(above.parent)
            expected.append(above.key)
        assert list(rows_above(run.plan, root, row)) == expected, row.path


def test_rows_above_a_step_whose_facet_is_called_at_several_places() -> None:
    inner = facet("F", "n", "", block(step("e", "E", x=given("n"))))
    calls = [facet(name, "n", "", block(step("f", "F", n=given("n")))) for name in "GH"]
    flow = workflow("W", "", "", block(step("g", "G", n=1), step("h", "H", n=1)))
    run = MemoryRun(program(event("E", "x", "y"), inner, *calls, flow))
    for path in ("W.g.f.e", "W.h.f.e"):
        rows, expected = run.step(path), []
        while rows.parent is not None:
            expected.append(rows.parent)
            rows = run._step(rows.parent)
        found = rows_above(run.plan, run.plan.workflow("W"), run.step(path))
        assert list(found) == expected
