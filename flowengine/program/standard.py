"""Built-in facets, added to the programs that use them.

A statement that calls `foreach`, `when` or `attempt` has a body of its own, and the facet
declares the result of that body. `now` and `uuid` have no body: the evaluator answers them.
`sleep` and `sleep_until` wait for a timer, `wait_for` for an answer from outside: no worker does.
`child` is an event facet: a worker starts a run for it. `script` is one too: for the evaluator
a script is an event like any other; the worker runs it and limits its time and memory. A script
reads the parameters and results of its step so far as ``params``, and fills the map ``result``.
`execute` is the event facet of a request to start a workflow by name, which a runner service does.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowengine.program.nodes import (
    ArrayType,
    EventOptions,
    FacetDeclaration,
    FacetKind,
    Field,
    Json,
    Literal,
    RetryPolicy,
    Type,
)

NAMESPACE = "flowengine"
FOREACH = f"{NAMESPACE}.foreach"
WHEN = f"{NAMESPACE}.when"
ATTEMPT = f"{NAMESPACE}.attempt"
NOW = f"{NAMESPACE}.now"
UUID = f"{NAMESPACE}.uuid"
SLEEP = f"{NAMESPACE}.sleep"
SLEEP_UNTIL = f"{NAMESPACE}.sleep_until"
WAIT_FOR = f"{NAMESPACE}.wait_for"
CHILD = f"{NAMESPACE}.child"
SCRIPT = f"{NAMESPACE}.script"
EXECUTE = f"{NAMESPACE}.execute"
REQUEST = f"{NAMESPACE}.Execute"  #: the workflow of a request, with one step `execute`
SCRIPT_LIST = "scripts"  #: its task list: scripts do not delay other work


#: Event facets without tasks: a timer or an answer from outside ends their steps.
WAITS = frozenset({SLEEP, SLEEP_UNTIL, WAIT_FOR})


#: Facets that a program in AFL text or JSON calls by their qualified names, without a declaration.
CALLABLE = frozenset({NOW, UUID, *WAITS})


def is_built_in(name: str) -> bool:
    """Whether a qualified name is in the namespace of the engine."""
    return name.startswith(f"{NAMESPACE}.")


RESULT = "result"  #: the result of each of them
ITEMS = "items"  #: the list of a `foreach`
ERRORS = "errors"  #: the failed items of a `foreach` that collects them
AFTER = "after"  #: a value that `now` waits for
RUN = "run"  #: the id of the run that a `child` has started

_List: Type = ArrayType("Json")
_PLAIN = EventOptions()
_DATE_TIME: Mapping[str, Json] = {"type": "string", "format": "date-time"}


def _facet(
    name: str,
    *fields: Field,
    result: Type = "Json",
    schema: Mapping[str, Json] | None = None,
    others: tuple[Field, ...] = (),
    kind: FacetKind = FacetKind.FACET,
    options: EventOptions = _PLAIN,
) -> FacetDeclaration:
    returns = (Field(RESULT, result, schema=schema), *others)
    short = name.rpartition(".")[2]
    return FacetDeclaration(kind, short, params=fields, returns=returns, options=options)


#: The declaration of each that a front end calls, by its qualified name.
STANDARD: Mapping[str, FacetDeclaration] = {
    FOREACH: _facet(FOREACH, Field(ITEMS, _List), result=_List),
    WHEN: _facet(WHEN),
    ATTEMPT: _facet(ATTEMPT),
    NOW: _facet(
        NOW,
        Field(AFTER, default=Literal(None)),
        result="String",
        schema=_DATE_TIME,
    ),
    UUID: _facet(UUID, result="String", schema={"type": "string", "format": "uuid"}),
    SLEEP: _facet(
        SLEEP, Field("seconds", "Double"), result="String", schema=_DATE_TIME, kind=FacetKind.EVENT
    ),
    SLEEP_UNTIL: _facet(
        SLEEP_UNTIL,
        Field("until", "String"),
        result="String",
        schema=_DATE_TIME,
        kind=FacetKind.EVENT,
    ),
    WAIT_FOR: _facet(
        WAIT_FOR,
        Field("name", "String"),
        Field("timeout", default=Literal(None)),
        Field("schema", default=Literal(None)),
        kind=FacetKind.EVENT,
    ),
    CHILD: _facet(
        CHILD,
        Field("workflow", "String"),
        Field("inputs"),
        Field("waits", "Boolean"),
        Field("on_cancel", "String", default=Literal("cancel")),
        others=(Field(RUN, "String"),),
        kind=FacetKind.EVENT,
        # Starting a run is idempotent: it is tried again after any number of losses.
        options=EventOptions(max_losses=1_000_000),
    ),
    EXECUTE: _facet(
        EXECUTE,
        Field("workflow", "String"),
        Field("inputs"),
        Field("program", default=Literal(None)),
        Field("options", default=Literal(None)),
        result="String",
        kind=FacetKind.EVENT,
        # A runner may not have the code of a workflow yet, while others are deployed.
        options=EventOptions(
            max_losses=1_000_000, retry=RetryPolicy(attempts=10, first_wait=1.0, max_wait=60.0)
        ),
    ),
}

#: Added by the linker to the plan of a program with scripts.
SCRIPT_FACET = FacetDeclaration(
    FacetKind.EVENT,
    SCRIPT,
    params=(Field("code", "String"), Field("params")),
    returns=(Field(RESULT),),
    options=EventOptions(task_list=SCRIPT_LIST),
)

#: `foreach` in a program that collects the errors of its items.
COLLECTING = _facet(FOREACH, Field(ITEMS, _List), result=_List, others=(Field(ERRORS, _List),))


def wider(one: FacetDeclaration, other: FacetDeclaration) -> FacetDeclaration:
    """Return the declaration with more returns: it serves both uses."""
    return max(one, other, key=lambda facet: len(facet.returns))
