"""The order of tasks: `depends`, unknown names in it, and cycles, each with its place."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flowengine.documents.models import Task
from flowengine.documents.problems import Place, Problems, listed
from flowengine.documents.yaml_nodes import ListNode, MapNode, Node, Scalar


@dataclass
class Graph:
    """The tasks that each task waits for, with the places in the text that say so."""

    problems: Problems
    edges: dict[str, dict[str, Place]] = field(default_factory=dict)

    def after(
        self, name: str, task: Task, node: MapNode, tasks: Collection[str], removed: frozenset[str]
    ) -> list[dict[str, Any]]:
        """Return the `after` of a task's statement; names that no task has are problems."""
        waits: dict[str, Place] = {}
        for each in _names(node.get("depends")):
            if each.text in waits:
                self.problems.add(each.place, f"`{each.text}` is listed twice")
            elif each.text == name:
                self.problems.add(each.place, f"the task `{name}` depends on itself")
            elif each.text in tasks:
                waits[each.text] = each.place
            elif each.text not in removed:
                hint = self.problems.near(each.text, tasks) or f"; known are: {listed(tasks)}"
                self.problems.add(each.place, f"there is no task `{each.text}`{hint}")
        on = node.key("on")
        if on is not None and node.key("depends") is None:
            self.problems.add(on.place, "`on` needs `depends`: it says how those tasks must end")
        self.edges[name] = dict(waits)
        return [{"step": step, "on": task.on} for step in waits]

    def uses(self, name: str, used: Mapping[str, Place]) -> None:
        """Note the tasks whose results a task uses."""
        self.edges[name] |= used

    def has_cycle(self) -> bool:
        """Report one cycle, at the place that closes it."""
        done: set[str] = set()
        for start in self.edges:
            path: dict[str, None] = {}  # in order; a list would be searched for each edge
            stack: list[tuple[str, Iterator[str]]] = []
            if start not in done:
                path[start] = None
                stack.append((start, iter(self.edges[start])))
            while stack:
                task, ahead = stack[-1]
                for needed in ahead:
                    if needed in path:
                        names = list(path)
                        cycle = " → ".join([*names[names.index(needed) :], needed])
                        what = f"the tasks {cycle} wait for each other in a cycle"
                        self.problems.add(self.edges[task][needed], what)
                        return True
                    if needed not in done:
                        path[needed] = None
                        stack.append((needed, iter(self.edges.get(needed, {}))))
                        break
                else:
                    done.add(task)
                    path.popitem()
                    stack.pop()
        return False


def _names(node: Node | None) -> list[Scalar]:
    if isinstance(node, Scalar):
        return [node]
    items = node.items if isinstance(node, ListNode) else ()
    return [item for item in items if isinstance(item, Scalar)]
