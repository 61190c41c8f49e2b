"""Prompt blocks: what a model is told for an event facet.

A template has the parameters of its facet as ``{name}``; ``{{`` and ``}}`` are braces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from flowengine.program.nodes import FacetDeclaration, FacetKind, Json
from flowengine.program.suggestions import Suggestions

_PARTS = re.compile(r"{{|}}|{([^{}]*)}|[{}]")
_MOST = 5  # problems of one text


def prompt_problems(node: FacetDeclaration) -> list[str]:
    """Return why the prompt of a facet cannot be used."""
    if node.prompt is None:
        return []
    if node.kind is not FacetKind.EVENT:
        return ["has a prompt block, which only an event facet may have"]
    names = [param.name for param in node.params]
    problems = _text_problems("template", node.prompt.template, names)
    return problems + _text_problems("system", node.prompt.system, names)


def _text_problems(where: str, text: str, names: list[str]) -> list[str]:
    problems = []
    for part in _PARTS.finditer(text):
        name = part[1]
        if name in names or part[0] in ("{{", "}}"):
            continue
        if name is None:
            what = f"has a single {part[0]!r} at character {part.start() + 1}; write {part[0] * 2}"
        else:
            known = f"it takes: {', '.join(names) or 'nothing'}"
            near = Suggestions().near(name, names)
            what = f"names the unknown parameter {name[:100]!r}{near} ({known})"
        problems.append(f"the {where} of its prompt {what}")
    return problems[:_MOST]


def filled(text: str, values: Mapping[str, Json]) -> str:
    """Return a text of a prompt with the values in it: text as it is, all else as JSON."""

    def replaced(part: re.Match[str]) -> str:
        if part[1] is None:
            return part[0][0]
        value = values.get(part[1])
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return _PARTS.sub(replaced, text)
