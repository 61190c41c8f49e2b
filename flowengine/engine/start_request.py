"""The request of a start: what the caller gave, validated before anything is written."""

from __future__ import annotations

import reprlib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from flowengine import tenants
from flowengine.authoring import IfFailed, IfRunning, OnCancel
from flowengine.engine import run_places
from flowengine.errors import InvalidInputs
from flowengine.printable import is_storable
from flowengine.program import Plan
from flowengine.program.nodes import Json
from flowengine.program.option_checks import LONGEST_SECONDS
from flowengine.program.types import check_inputs
from flowengine.settings import Settings
from flowengine.store import codec

LEAVE: OnCancel = "leave"
_MAX_PRIORITY = 1_000_000_000


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
    key_ttl: float | None = None  #: seconds after which another run may take the key
    singleton: str | None = None  #: no other open run of the workflow has it
    if_running: IfRunning = "reject"  #: if an open run has the singleton key
    max_open: int | None = None  #: open runs of the workflow, above which the start is refused
    agent_call: str | None = None  #: of an agent that waits for its end
    runs: int | None = None  #: open runs of the workflow, above which it is queued

    @property
    def is_queued(self) -> bool:
        """Whether the run begins only after the others with its singleton key."""
        return self.singleton is not None and self.if_running in ("queue", "replace")

    @property
    def is_part_of_another(self) -> bool:
        """Whether a run or a turn of an agent starts it: it goes on if its workflow is closed."""
        return self.parent is not None or self.agent_call is not None

    @property
    def queue(self) -> tuple[str, str, str]:
        """Tenant, workflow and key of the queue in which the run waits."""
        key = self.singleton or "" if self.runs is None else run_places.queue_key(self.runs)
        return self.tenant, self.workflow, key


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
    if options.get("deadline") is None:
        options["deadline"] = facet.deadline
    request = StartRequest(digest, text, plan, facet.name, plain, runs=facet.runs, **options)
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
    elif key is not None and (not 0 < len(key) <= 255 or not is_storable(key)):
        yield "the key must have 1 to 255 characters, no NUL among them and no lone surrogate"
    if request.if_failed not in get_args(IfFailed):
        shown = _kind(request.if_failed)
        yield f"the option if_failed must be 'return', 'start' or 'raise', not {shown}"
    elif request.if_failed != "return" and key is None:
        yield "the option if_failed needs a key: it is for the failed run of a used key"
    if not isinstance(tenant, str):
        yield f"the tenant must be text, not {_kind(tenant)}"
    elif len(tenant) > tenants.MAX_LENGTH or not is_storable(tenant):
        yield "the tenant must have 64 characters at most, no NUL among them and no lone surrogate"
    if not isinstance(priority, int) or isinstance(priority, bool):
        yield f"the priority must be a whole number, not {_kind(priority)}"
    elif abs(priority) > _MAX_PRIORITY:
        yield f"the priority must be between {-_MAX_PRIORITY:,} and {_MAX_PRIORITY:,}"
    for what, seconds in (("deadline", request.deadline), ("key_ttl", request.key_ttl)):
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if seconds is not None and not (is_number and 0 < seconds <= LONGEST_SECONDS):
            yield f"the {what} must be a number of seconds above 0, or a timedelta, not {seconds!r}"
    if request.key_ttl is not None and key is None:
        yield "the option key_ttl needs a key: it is the time after which the key is free again"
    yield from _invalid_singleton(request)
    if not isinstance(labels, Mapping):
        yield f"the labels must be a map of text to text, not {_kind(labels)}"
    else:
        for name, value in labels.items():
            if not isinstance(name, str) or not isinstance(value, str):
                yield f"the labels must be a map of text to text; {_kind(name)} has {_kind(value)}"


def _invalid_singleton(request: StartRequest) -> Iterator[str]:
    singleton, most = request.singleton, request.max_open
    if singleton is not None and not isinstance(singleton, str):
        yield f"the singleton key must be text, not {_kind(singleton)}"
    elif singleton is not None and (not 0 < len(singleton) <= 255 or not is_storable(singleton)):
        yield "the singleton key must have 1 to 255 characters, no NUL among them and no surrogate"
    if request.if_running not in get_args(IfRunning):
        allowed = "'reject', 'return', 'replace' or 'queue'"
        yield f"the option if_running must be {allowed}, not {_kind(request.if_running)}"
    elif singleton is not None and run_places.is_of_places(singleton):
        yield f"the singleton key {singleton!r} is one of the engine: give it another"
    elif singleton is not None and request.runs is not None:
        yield "the workflow limits its open runs itself: start it without a singleton key"
    elif request.if_running != "reject" and singleton is None:
        yield "the option if_running needs a singleton key: it is for another run that has it"
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        yield f"the option max_open must be a whole number, 1 or more, not {_kind(most)}"


def _kind(value: object) -> str:
    """Describe a value of another type than expected, in one word or two."""
    return f"{reprlib.repr(value)} ({type(value).__name__})"
