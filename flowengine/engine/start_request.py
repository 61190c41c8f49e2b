"""The request of a start: what the caller gave, validated before anything is written."""

from __future__ import annotations

import re
import reprlib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from flowengine import tenants
from flowengine.authoring import IfFailed, OnCancel
from flowengine.errors import InvalidInputs
from flowengine.program import Plan
from flowengine.program.nodes import Json
from flowengine.program.option_checks import LONGEST_SECONDS
from flowengine.program.types import check_inputs
from flowengine.settings import Settings
from flowengine.store import codec

LEAVE: OnCancel = "leave"
_MAX_PRIORITY = 1_000_000_000
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class StartRequest:
    """A run to be started, with validated inputs."""

    digest: str
    text: str  #: of the program
    plan: Plan
    workflow: str
    inputs: dict[str, Json]
    key: str | None = None
    priority: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    tenant: str = ""
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    parent: Parent | None = None
    if_failed: IfFailed = "return"  #: if the run of the key has failed
    deadline: float | None = None  #: seconds after its start by which it must end


@dataclass(frozen=True)
class Parent:
    """The step that started a run."""

    run_id: str
    step_id: str
    step_key: str
    root_run_id: str
    depth: int  #: of the child: the runs above it
    waits: bool  #: for the end of the run, which is the step's result
    on_cancel: OnCancel = "cancel"  #: when the parent is cancelled


def start_request(
    prepared: tuple[str, str, Plan],
    workflow: str,
    inputs: Mapping[str, Json],
    settings: Settings,
    **options: Any,
) -> StartRequest:
    """Return the request of a start, or raise InvalidInputs, NotJson or TooLarge."""
    digest, text, plan = prepared
    facet = plan.workflow(workflow)
    if not isinstance(inputs, Mapping):
        raise InvalidInputs(facet.name, [f"the inputs must be a map, not {_kind(inputs)}"])
    codec.check_names(f"the input of {facet.name}", inputs)
    for name, value in inputs.items():
        codec.check_value(
            f"input {name!r} of {facet.name}",
            value,
            settings.max_value_bytes,
            settings.max_json_depth,
        )
    plain = {name: codec.plain(value) for name, value in inputs.items()}
    check_inputs(facet, plain, plan.limits)
    request = StartRequest(digest, text, plan, facet.name, plain, **options)
    if problems := list(_invalid_options(request)):
        raise InvalidInputs(facet.name, problems)
    if request.labels:
        labels = dict(request.labels)
        limit = settings.max_value_bytes
        codec.check_value(f"the labels of {facet.name}", labels, limit)
    return request


def _invalid_options(request: StartRequest) -> Iterator[str]:
    """Name the options that have another type, or that no database column can hold."""
    key, tenant, priority, labels = request.key, request.tenant, request.priority, request.labels
    if key is not None and not isinstance(key, str):
        yield f"the key must be text, not {_kind(key)}"
    elif key is not None and (not 0 < len(key) <= 255 or not _is_storable(key)):
        yield "the key must have 1 to 255 characters, no NUL among them and no lone surrogate"
    if request.if_failed not in get_args(IfFailed):
        shown = _kind(request.if_failed)
        yield f"the option if_failed must be 'return', 'start' or 'raise', not {shown}"
    elif request.if_failed != "return" and key is None:
        yield "the option if_failed needs a key: it is for the failed run of a used key"
    if not isinstance(tenant, str):
        yield f"the tenant must be text, not {_kind(tenant)}"
    elif len(tenant) > tenants.MAX_LENGTH or not _is_storable(tenant):
        yield "the tenant must have 64 characters at most, no NUL among them and no lone surrogate"
    if not isinstance(priority, int) or isinstance(priority, bool):
        yield f"the priority must be a whole number, not {_kind(priority)}"
    elif abs(priority) > _MAX_PRIORITY:
        yield f"the priority must be between {-_MAX_PRIORITY:,} and {_MAX_PRIORITY:,}"
    seconds = request.deadline
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (is_number and 0 < seconds <= LONGEST_SECONDS):
        yield f"the deadline must be a number of seconds above 0, or a timedelta, not {seconds!r}"
    if not isinstance(labels, Mapping):
        yield f"the labels must be a map of text to text, not {_kind(labels)}"
    else:
        for name, value in labels.items():
            if not isinstance(name, str) or not isinstance(value, str):
                yield f"the labels must be a map of text to text; {_kind(name)} has {_kind(value)}"


def _is_storable(text: str) -> bool:
    return "\0" not in text and (text.isascii() or not _SURROGATE.search(text))


def _kind(value: object) -> str:
    """Describe a value of another type than expected, in one word or two."""
    return f"{reprlib.repr(value)} ({type(value).__name__})"
