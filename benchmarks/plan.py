"""The jobs of a sitting: all, a choice, those of durable functions, or a few for four minutes."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.field import CONTENDERS
from benchmarks.measurements import Job
from benchmarks.workloads import WORKLOADS

#: Quick: seconds after which nothing new is begun, counted from the start of the servers.
QUICK_SECONDS = 195.0
#: Quick: seconds for one measurement. Together they stay below four minutes.
QUICK_TIMEOUT = 40.0
_QUICK = {
    "W2": (100, 1000),
    "W3": (100, 1000),
    "W4": (500,),
    "W4 together": (500,),
    "W4 idle": (40,),
}
_QUICK_CONTENDERS = ("flowengine", "canvas", "dbos-steps", "dbos-queue")

#: Durable functions: what they are held against, and they, one right after the other.
_FUNCTIONS = {
    "W3": (1000,),
    "W8": (1000,),
    "W8 reads": (1000,),
    "W8 tasks": (1000,),
    "W4": (500,),
    "W8 runs": (500,),
}
#: Chains take a second or two, and many short figures say more than a few: as often in each round.
_CHAINS_PER_ROUND = 3
_FUNCTIONS_CONTENDERS = ("flowengine", "flowengine-sqlite", "dbos-steps", "dbos-sqlite")


@dataclass(frozen=True)
class Choice:
    """The choice of the command line. Without a name everything is chosen."""

    workloads: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    contenders: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()

    @property
    def names_workloads(self) -> bool:
        return bool(self.workloads or self.sizes or self.contenders)


def jobs(choice: Choice, *, quick: bool, functions: bool = False) -> list[Job]:
    """In the order in which they are done."""
    if choice.sections and not choice.names_workloads and not quick and not functions:
        return []
    plan, names = {name: shape.sizes for name, shape in WORKLOADS.items()}, tuple(CONTENDERS)
    if quick:
        plan, names = _QUICK, _QUICK_CONTENDERS
    elif functions:
        plan, names = _FUNCTIONS, _FUNCTIONS_CONTENDERS
    names = choice.contenders or names
    found = []
    for workload in choice.workloads or tuple(plan):
        for size in choice.sizes or plan.get(workload, WORKLOADS[workload].sizes):
            if workload == "W6" and "flowengine" in names and not choice.sizes:
                # Two steps for each item: it is held against W2 with twice the items.
                found.append(Job("W2", 2 * size, ("flowengine",)))
            takers = tuple(name for name in names if CONTENDERS[name].takes(workload, size))
            if takers:
                found.append(Job(workload, size, takers))
    if functions:
        chains = [job for job in found if job.workload not in ("W4", "W8 runs")]
        found = chains * (_CHAINS_PER_ROUND - 1) + found
    return found


def sections(choice: Choice, known: tuple[str, ...], *, is_short: bool) -> tuple[str, ...]:
    if is_short or (choice.names_workloads and not choice.sections):
        return ()
    return choice.sections or known
