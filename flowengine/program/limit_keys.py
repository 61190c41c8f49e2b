"""The keys of limits, rates and caches: texts with names of parameters in braces."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator
from string import Formatter
from typing import Any, Protocol

TENANT = "tenant"  #: in a key: the tenant of the run, unless the facet has a parameter of that name
RUN = "$run"  #: in a key: the id of the run; no parameter has that name
LONGEST_KEY = 200  #: characters of a key; a longer one ends with its digest


class KeyScope(Protocol):
    """The run of a step that needs a key: names in braces may stand for its id and tenant."""

    @property
    def id(self) -> str: ...
    @property
    def tenant(self) -> str: ...


class UnreadableKey(ValueError):
    """A key cannot be read as a text with names in braces."""


def _parts(template: str) -> Iterator[tuple[str, str | None]]:
    """Return the texts of a key, each with the path of names that follows it."""
    try:
        for text, path, form, conversion in Formatter().parse(template):
            if form or conversion or (path is not None and not all(path.split("."))):
                raise UnreadableKey
            yield text, path
    except ValueError:
        message = f"{template!r} is not a text with names of parameters in braces"
        raise UnreadableKey(message) from None


def key_problems(
    template: str, parameters: Collection[str], suggest: Callable[[str, Collection[str]], str]
) -> Iterator[str]:
    """Return the problems of a key of a facet with these parameters."""
    try:
        named = [path.partition(".")[0] for _, path in _parts(template) if path is not None]
    except UnreadableKey as problem:
        yield f"the key {problem}"
        return
    for name in named:
        if name not in parameters and name not in (TENANT, RUN):
            hint = suggest(name, parameters)
            yield f"the key {template!r} names {name!r}, which is no parameter{hint}"


def whole_names(template: str) -> Iterator[str]:
    """Return the parameters whose whole value is in a key: `{order}`, and not `{order.id}`."""
    try:
        yield from (path for _, path in _parts(template) if path is not None and "." not in path)
    except UnreadableKey:
        return  # see `key_problems`


def rendered(template: str, value_of: Callable[[str], Any], run: KeyScope) -> str:
    """Return the key for the arguments of a step; `value_of` raises KeyError for an unknown name.

    Raises KeyError for a name without a value, and TypeError for a list or a map.
    """
    found = []
    for text, path in _parts(template):
        found.append(text)
        if path is not None:
            found.append(_text(path, value_of, run))
    key = "".join(found)
    if len(key) <= LONGEST_KEY:
        return key
    digest = hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return f"{key[: LONGEST_KEY - len(digest) - 1]}~{digest}"


def typed_parts(template: str, value_of: Callable[[str], Any], run: KeyScope) -> list[Any]:
    """Return the texts and the values of a key: no two lists of arguments have the same.

    Raises as `rendered` does, whose text two of them may share: "a:b" and "c", "a" and "b:c".
    """
    found: list[Any] = []
    for text, path in _parts(template):
        found.append(text)
        if path is not None:
            found.append([_value(path, value_of, run)])
    return found


def _text(path: str, value_of: Callable[[str], Any], run: KeyScope) -> str:
    value = _value(path, value_of, run)
    # A NUL or a lone surrogate has no place in a database.
    is_plain = isinstance(value, str) and "\0" not in value and value.isprintable()
    return value if is_plain else json.dumps(value)


def _value(path: str, value_of: Callable[[str], Any], run: KeyScope) -> Any:
    name, *rest = path.split(".")
    try:
        value = value_of(name)
    except KeyError:
        if name not in (TENANT, RUN):
            raise
        value = run.id if name == RUN else run.tenant
    for part in rest:
        if not isinstance(value, dict) or part not in value:
            raise KeyError(path)
        value = value[part]
    if isinstance(value, dict | list):
        raise TypeError(path)
    return value
