"""The event facets of the conformance corpus, for workers: they answer as its handlers do.

No two cases declare an event facet of one name, so one worker serves them all and the programs
stay as they are. Left out are those of which the corpus leaves a task unanswered: a worker that
has a facet answers all its tasks.
"""

from __future__ import annotations

import inspect
from inspect import Parameter
from typing import Any

from flowengine import event_facet
from tests.corpus import CASES, Answer, Case, answers, event_facets, unanswered


def _offer(name: str, answer: Answer, always: set[str], sometimes: set[str]) -> None:
    def facet(**data: Any) -> dict[str, Any]:
        return answer(data)

    # A program knows each parameter by its name, so the function must name them too.
    given = [Parameter(p, Parameter.KEYWORD_ONLY) for p in sorted(always)]
    given += [Parameter(p, Parameter.KEYWORD_ONLY, default=None) for p in sorted(sometimes)]
    facet.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
    event_facet(name=name)(facet)


def _parameters(case: Case, name: str) -> tuple[set[str], set[str]]:
    """The names that each task of a facet carries, and those that only some carry."""
    tasks = [set(task["data"]) for task in case["expect"].get("tasks", []) if task["name"] == name]
    declared = event_facets(case)[name]
    always = declared.intersection(*tasks)
    return always, declared.union(*tasks) - always


for _case in CASES.values():
    for _name, _answer in answers(_case).items():
        if _name not in unanswered(_case):
            _offer(_name, _answer, *_parameters(_case, _name))
