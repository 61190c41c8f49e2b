"""The continuation policy."""

from __future__ import annotations

from flowengine.evaluator import TaskDefinition
from flowengine.store.claims import WorkerIdentity
from flowengine.worker.batch import BatchSizing
from flowengine.worker.continuations import Continuation


def task(uuid: str, name: str = "t.quick", **more: object) -> TaskDefinition:
    return TaskDefinition(uuid, name, "", "run", "hash", uuid, **more)  # type: ignore[arg-type]


def practised(*names: str) -> BatchSizing:
    sizing = BatchSizing(0.002)
    for name in names:
        sizing.count(name, 0.0001)
        sizing.count(name, 0.0001)
    return sizing


def continuation(sizing: BatchSizing, lists: tuple[str, ...] = ()) -> Continuation:
    return Continuation(
        WorkerIdentity(), sizing, {"t.quick", "t.slow"}, lists, batch=4, seconds=0.025
    )


def test_a_worker_continues_with_several_quick_tasks_or_one_slow_task() -> None:
    quick = [task(str(n)) for n in range(3)]
    slow = [task(f"slow {n}", "t.slow") for n in range(3)]
    sizing = practised("t.quick")
    assert continuation(sizing).choose([*quick, *slow]) == {"0", "1", "2"}
    policy = continuation(sizing)
    assert policy.choose(slow) == {"slow 0"}
    assert policy.choose(slow) == set(), "one slow task for all runs of a report"


def test_after_a_slow_try_all_runs_of_a_report_share_a_small_batch() -> None:
    sizing = practised("t.quick")
    sizing.count("t.quick", 1.0)
    sizing.count("t.quick", 0.0001)
    policy = continuation(sizing)
    assert policy.choose([task("0"), task("1")]) == {"0", "1"}
    assert policy.choose([task("2"), task("3")]) == {"2"}


def test_tasks_of_other_facets_or_task_lists_are_left_to_other_workers() -> None:
    sizing = practised("t.quick", "t.other")
    strange = task("strange", "t.other")
    elsewhere = task("elsewhere", task_list_name="gpu")
    assert continuation(sizing, ("default",)).choose([strange, elsewhere]) == set()


def test_a_group_wider_than_a_batch_is_left_to_all_workers() -> None:
    wide = [task(str(n), join="row") for n in range(5)]
    assert not continuation(practised("t.quick")).choose(wide)


def test_a_task_with_a_loss_or_on_loss_fail_is_not_batched() -> None:
    sizing = practised("t.quick")
    lost, once = task("lost", losses=1), task("once", runs_once=True)
    assert continuation(sizing).choose([lost, once]) == {"lost"}
    assert continuation(sizing).choose([once, task("quick")]) == {"quick"}
