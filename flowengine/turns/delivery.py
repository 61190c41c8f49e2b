"""The contents of a deliverable, and the fields that a task asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowengine.program.nodes import Json

EMPTY = "(no content)"
RESULT = "result"  #: the field of a result that is no object


def of_text(text: str) -> Json:
    return {"text": text or EMPTY}


def of_fields(fields: Sequence[tuple[str, Json]]) -> Json:
    return {"fields": [{"name": name, "value": value} for name, value in fields]}


def of_result(result: Json) -> Json:
    """Return the deliverable of a turn that ends with the result of a call."""
    if isinstance(result, Mapping):
        shown = {name: value for name, value in result.items() if name != "__cg_control"}
        return of_fields(list(shown.items()))
    return of_text(result) if isinstance(result, str) else of_fields([(RESULT, result)])


def fallback(status: str, code: str, message: str, partial: str) -> Json:
    """Return the deliverable of a turn that ended without one of its own."""
    return {
        "kind": "fallback_deliverable",
        "schema_version": 1,
        "status": status,
        "fields": [
            {"name": "summary", "value": message or code or status},
            {"name": "output", "value": partial},
            {"name": "reason", "value": code},
        ],
    }


def values_of(content: Json) -> Json:
    """Return the values of a deliverable: its text, or its fields by name."""
    assert isinstance(content, Mapping)
    if "text" in content:
        return content["text"]
    fields = content.get("fields")
    assert isinstance(fields, list)
    found: dict[str, Json] = {}
    for field in fields:
        assert isinstance(field, Mapping)
        found[str(field["name"])] = field["value"]
    return found


def submitted(
    arguments: Mapping[str, Json], wanted: Sequence[str]
) -> tuple[tuple[tuple[str, Json], ...], str]:
    """Return the fields of a `submit_result`, required ones first, and the problem with them.

    Takes a map of names to values, or the list form ``{"result": {"fields": [{name, value}]}}``.
    """
    given: Json = dict(arguments)
    if isinstance(given, dict) and set(given) == {RESULT} and isinstance(given[RESULT], Mapping):
        inner = given[RESULT]
        if set(inner) == {"fields"} or RESULT not in wanted:
            given = inner
    pairs = _pairs(given)
    if isinstance(pairs, str):
        return (), pairs
    names = [name for name, _ in pairs]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        return (), f"these fields are given twice: {', '.join(doubled)}"
    if missing := [name for name in wanted if name not in names]:
        return (), f"these fields are missing: {', '.join(missing)}"
    found = dict(pairs)
    order = [*wanted, *(name for name in names if name not in wanted)]
    return tuple((name, found[name]) for name in order), ""


def _pairs(given: Json) -> list[tuple[str, Json]] | str:
    if not isinstance(given, Mapping):
        return "the result is a map of names to values"
    if set(given) != {"fields"} or not isinstance(given["fields"], list):
        return [(str(name), value) for name, value in given.items()]
    pairs = []
    for field in given["fields"]:
        if not isinstance(field, Mapping) or not isinstance(field.get("name"), str):
            return "each field is a map with a name and a value"
        if "value" not in field or not str(field["name"]).strip():
            return "each field is a map with a name and a value"
        pairs.append((str(field["name"]), field["value"]))
    return pairs
