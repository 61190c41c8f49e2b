"""The exceptions of flowengine.

Invariant: ``args`` are the constructor's arguments, because Celery and pickle rebuild an
exception as ``cls(*args)``. An error with fields is a dataclass, and composes its message of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from flowengine.printable import masked_url, printable
from flowengine.shown_paths import shown_path

_SUBJECT = re.compile(
    r"(?:unknown )?(?:input )?'[^']*'|"
    r"the (?:inputs|keys?|labels|option if_failed|priority|tenant)\b"
)


_BYTES = frozenset({"bytes", "bytearray", "memoryview"})
_ADDRESS = (
    "write the data to a file or an object store and pass its address: flowengine stores JSON, and "
    "does not pickle"
)


class FlowengineError(Exception):
    """The base class of all errors of flowengine."""

    #: The message of an error with fields, which it names in braces.
    _text: ClassVar[str] = ""

    def __post_init__(self) -> None:
        self.args = tuple(vars(self).values())

    def __str__(self) -> str:
        return self._text.format_map(vars(self)) if self._text else super().__str__()

    def without_values(self) -> str:
        """The message for logs, which show the names of inputs and never their values."""
        return str(self)


class ProgramError(FlowengineError):
    """A program cannot be loaded or started."""


@dataclass(eq=False, repr=False)
class InvalidText(ProgramError):
    """An AFL text has a syntax error."""

    file: str
    line: int  #: from 1
    column: int  #: from 1
    what: str
    source: str = ""  #: the line of the text
    hint: str = ""

    def __str__(self) -> str:
        place = f"line {self.line}, column {self.column}"
        if self.file:
            place = f"{self.file}:{self.line}:{self.column}"
        # Keep tabs, so that the caret is aligned on any terminal.
        lead = "".join(c if c == "\t" else " " for c in self.source[: self.column - 1])
        cure = f"\n{self.hint}" if self.hint else ""
        return f"{place}: {self.what}\n    {self.source}\n    {lead}^{cure}"


@dataclass(frozen=True)
class Problem:
    """One problem of a program."""

    where: str  #: declaration and statement, e.g. ``shop.Order, step 'charge'``
    what: str  #: the problem, and the cure if there is one

    def __str__(self) -> str:
        # One line, whatever names the program has.
        return printable(f"{self.where}: {self.what}" if self.where else self.what)


@dataclass(eq=False, repr=False)
class InvalidProgram(ProgramError):
    """A program has problems that the linker finds."""

    problems: list[Problem]

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f"the program cannot be loaded: {self.problems[0]}"
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        return f"the program cannot be loaded, {len(self.problems)} problems:\n{lines}"


@dataclass(eq=False, repr=False)
class UnknownWorkflow(ProgramError):
    """A program has no workflow of that name."""

    name: str
    known: list[str]

    def __str__(self) -> str:
        known = printable(", ".join(self.known)) or "none"
        return f"the program has no workflow {self.name!r}; it declares: {known}"


class WorkflowNotImported(UnknownWorkflow):
    """A message asks for a workflow whose module the worker has not imported."""

    def __str__(self) -> str:
        known = printable(", ".join(self.known)) or "none"
        return (
            f"this worker has imported no workflow {self.name!r}; it has: {known}. Give the "
            "qualified name, and let each worker of the control queue import its module (imports "
            "of the app, or FLOWENGINE_IMPORTS)"
        )


@dataclass(eq=False, repr=False)
class WorkflowNotServed(FlowengineError, LookupError):
    """A request asks for a workflow that the runner which claimed it does not have."""

    name: str
    known: list[str]

    def __str__(self) -> str:
        known = printable(", ".join(self.known)) or "none"
        return (
            f"this runner has no workflow {self.name!r}; it has: {known}. Give its module or its "
            "program to each runner of the task list, or give the program to enqueue_execute; the "
            "request is tried again some times, and then by flowengine retry"
        )


@dataclass(eq=False, repr=False)
class StartRefused(ProgramError):
    """A `flowengine.execute` message started no run."""

    workflow: str
    reason: str  #: without values of inputs: logs, Flower and result backends show it
    _text = "flowengine.execute started no run of {workflow!r}: {reason}"


@dataclass(eq=False, repr=False)
class InvalidInputs(ProgramError):
    """The inputs of a start do not match the workflow's parameters."""

    workflow: str
    problems: list[str]

    def __str__(self) -> str:
        return f"workflow {self.workflow!r} cannot be started: {'; '.join(self.problems)}"

    def without_values(self) -> str:
        return f"workflow {self.workflow!r} cannot be started: {_names(self.problems)}"


def _names(problems: list[str]) -> str:
    """The names that problems begin with. The rest may quote values."""
    names = [found[0] for problem in problems if (found := _SUBJECT.match(problem))]
    return f"{', '.join(dict.fromkeys(names)) or 'its arguments'} cannot be accepted"


class AuthoringError(FlowengineError):
    """A decorated function cannot become a program."""


class SymbolMisuse(AuthoringError, TypeError):
    """Code needs the value of a symbol, which exists only in the run."""


@dataclass(eq=False, repr=False)
class NotACeleryTask(AuthoringError, AttributeError):
    """A method of Celery's tasks was asked of a workflow or a facet."""

    subject: str
    attribute: str
    cure: str
    _text = "{subject} is not a Celery task and has no {attribute!r}: {cure}"


@dataclass(eq=False, repr=False)
class UntraceableCode(AuthoringError):
    """A trace would silently misinterpret the source of a function."""

    function: str
    findings: list[Problem]

    def __str__(self) -> str:
        lines = "\n".join(f"  - {finding}" for finding in self.findings)
        return f"the body of {self.function!r} cannot be traced:\n{lines}"


@dataclass(eq=False, repr=False)
class DoesNotFit(AuthoringError, TypeError):
    """Arguments or result of an event facet violate its annotations."""

    facet: str
    problems: list[str]

    def __str__(self) -> str:
        return f"event facet {self.facet!r}: {'; '.join(self.problems)}"

    def without_values(self) -> str:
        return f"event facet {self.facet!r}: {_names(self.problems)}"


@dataclass(eq=False, repr=False)
class MissingCode(AuthoringError):
    """This process has no code for an event facet."""

    facet: str
    _text = (
        "no Python code for event facet {facet!r} in this process: import the module "
        "that decorates it with @event_facet, or run a worker that has it"
    )


@dataclass(eq=False, repr=False)
class SecretUnreadable(FlowengineError):
    """A stored secret cannot be decrypted in this process."""

    why: str
    _text = "a stored secret cannot be read: {why}"


class PayloadUnreadable(FlowengineError):
    """A stored value cannot be decoded: its codec or its key is missing, or it was changed."""

    def __str__(self) -> str:
        return f"a stored value cannot be read: {self.args[0]}"


class ScriptFailed(FlowengineError):
    """A script block raised, exceeded its time or memory limit, or returned no map."""


class ValueRefused(FlowengineError, ValueError):
    """A value cannot be stored."""


@dataclass(eq=False, repr=False)
class AnswerRefused(ValueRefused):
    """An answer from outside that no step of the run takes; nothing of it is stored."""

    run_id: str
    name: str
    reason: str
    _text = "the answer {name!r} for run {run_id} is refused: {reason}"


class WaitTimedOut(FlowengineError):
    """The type of the error of a `wait_for` that nobody answered in time; `attempt` catches it."""


class DeadlineExceeded(FlowengineError):
    """The type of the error of a step or run that has not ended in time; `attempt` catches it."""


@dataclass(eq=False, repr=False)
class LinkRefused(ValueRefused):
    """A link with an answer that cannot be made, or is not valid."""

    reason: str
    _text = "the link is refused: {reason}"


@dataclass(eq=False, repr=False)
class ActionRefused(FlowengineError):
    """An action that the run does not take in its state; nothing was changed."""

    run_id: str
    action: str
    reason: str
    _text = "{action} of run {run_id} is refused: {reason}"


@dataclass(eq=False, repr=False)
class TryCancelled(FlowengineError):
    """The result of this try is no longer wanted."""

    path: str
    _text = (
        "the try of {path} is cancelled: its run was cancelled, or its step has timed out or was "
        "answered from outside; its result would be refused"
    )


@dataclass(eq=False, repr=False)
class InvalidFilter(FlowengineError, ValueError):
    """A filter of runs that cannot match as it is meant."""

    problem: str
    _text = "{problem}"

    @classmethod
    def of(cls, name: str, value: object, expected: str) -> InvalidFilter:
        shown = printable(repr(value), limit=200)
        return cls(f"the filter {name} is {shown}: it must be {expected}")


@dataclass(eq=False, repr=False)
class InvalidActor(FlowengineError):
    """The name of an actor that no action can record."""

    name: str
    limit: int
    _text = (
        "{name!r} names no actor: write a printable name of 1 to {limit} characters, with its kind "
        "if it is not a person, as in 'token:ci'"
    )


@dataclass(eq=False, repr=False)
class NotJson(ValueRefused):
    """A value has no JSON form."""

    what: str
    where: str
    type_name: str
    _text = "{what} is not JSON: {where} is of type {type_name}; {cure}"

    @property
    def cure(self) -> str:
        if self.type_name in _BYTES:
            return "annotate it as bytes: then it is stored as base64"
        if self.type_name.startswith("Secret"):
            return "annotate it with this type: then it is stored encrypted"
        if self.type_name.startswith("number "):
            return f"use None for a missing number, or {_ADDRESS}"
        return f"annotate it with a type pydantic can write, as a dataclass, or {_ADDRESS}"

    def __str__(self) -> str:
        return self._text.format_map({**vars(self), "cure": self.cure})


@dataclass(eq=False, repr=False)
class SecretRefused(ValueRefused):
    """A secret cannot be stored."""

    what: str
    where: str
    why: str
    _text = "{what} cannot be stored: {where} is a secret, and {why}"


class NotSendable(NotJson):
    """A message or a status contains a value that JSON cannot carry."""

    _text = (
        "{what} cannot be sent: {where} is a {type_name}, which JSON cannot carry; "
        "send text, finite numbers, true, false, null, lists and maps with text as keys"
    )


@dataclass(eq=False, repr=False)
class TooLarge(ValueRefused):
    """A value exceeds the size limit of one stored value."""

    what: str
    size: int
    limit: int
    _text = (
        "{what} takes {size:,} bytes as JSON, the limit is {limit:,}: put the data in a file or "
        "an object store and pass its address, or raise FLOWENGINE_MAX_VALUE_BYTES"
    )


@dataclass(eq=False, repr=False)
class LimitReached(FlowengineError):
    """Something would exceed a limit of the settings."""

    what: str
    limit: int
    setting: str
    cure: str
    _text = "{what}: the limit is {limit:,} (setting {setting}); {cure}, or raise the limit"


@dataclass(eq=False, repr=False)
class WaitInsideStep(FlowengineError):
    """Code of a step waits for a run of the same engine."""

    run_id: str
    step: str
    _text = (
        "step {step} cannot wait for run {run_id}: it would keep its place in the pool, and with "
        "every place waiting no run could go on. Let the event facet return other.call(...), or "
        "write other.start(...).result() in the workflow: then the engine waits, without a place"
    )


@dataclass(eq=False, repr=False)
class UnknownRun(FlowengineError, LookupError):
    """No run has that id."""

    run_id: str
    _text = (
        "there is no run {run_id!r} in this database, or it was purged; `flowengine list` shows "
        "the runs"
    )


@dataclass(eq=False, repr=False)
class AmbiguousRun(FlowengineError, LookupError):
    """Several run ids start with that prefix."""

    beginning: str
    _text = "several run ids start with {beginning!r}: give a longer prefix"


@dataclass(eq=False, repr=False)
class UnknownStep(FlowengineError, LookupError):
    """No step has that id."""

    step_id: str
    _text = "there is no step {step_id!r} in this database"


@dataclass(eq=False, repr=False)
class TenantRefused(FlowengineError):
    """An app or a token is bound to one tenant, and another one was asked for."""

    bound: str
    asked: str
    _text = (
        "tenant {asked!r} is refused: this app or token is bound to tenant {bound!r} (settings "
        "tenant and tenant_tokens) and neither starts nor reads runs of others; leave the tenant "
        "out, or use an app or a token of that tenant"
    )


@dataclass(eq=False, repr=False)
class RunFailed(FlowengineError):
    """The run has failed, so it has no result."""

    run_id: str
    path: str
    error_type: str
    message: str
    _text = (
        "run {run_id} failed at {place}: {error_type}: {message} "
        "(`flowengine show {run_id}` shows every step)"
    )

    def __str__(self) -> str:
        return self._text.format_map({**vars(self), "place": shown_path(self.path)})


@dataclass(eq=False, repr=False)
class RunCancelled(FlowengineError):
    """The run was cancelled, so it has no result."""

    run_id: str
    message: str  #: who cancelled it, and why
    _text = "run {run_id} was {message} (`flowengine show {run_id}` shows every step)"


@dataclass(eq=False, repr=False)
class EarlierRunFailed(RunFailed):
    """The run that an earlier start with the key has started has failed."""

    key: str = ""
    _text = (
        "key {key!r} was used for run {run_id}, which failed at {place}: {error_type}: {message}. "
        "Nothing is started: start with if_failed='start' to run it again, or with another key "
        "(`flowengine show {run_id}` shows every step)"
    )


@dataclass(eq=False, repr=False)
class AlreadyRunning(FlowengineError):
    """Another open run of the workflow has the singleton key."""

    workflow: str
    key: str
    run_id: str
    _text = (
        "{workflow} is running with the singleton key {key!r}: run {run_id}. Nothing is started: "
        "wait for its end, or start with if_running='return', 'replace' or 'queue'"
    )


@dataclass(eq=False, repr=False)
class TooManyRuns(FlowengineError):
    """A workflow has as many open runs as it may have."""

    workflow: str
    limit: int
    _text = (
        "{workflow} has {limit} open runs, which is its limit. Nothing is started: start it again "
        "when some have ended, or raise max_open (the setting max_open_runs)"
    )


@dataclass(eq=False, repr=False)
class PartlyStarted(FlowengineError):
    """`start_many` started some runs before a later commit failed."""

    started: list[Any]
    requested: int
    problem: Exception

    def __str__(self) -> str:
        return (
            f"{len(self.started)} of {self.requested} runs were started before "
            f"{type(self.problem).__name__}: {self.problem}. They continue and are in the "
            "error's `started`; start only the remaining inputs again"
        )


class StoreError(FlowengineError):
    """The database cannot be used."""


@dataclass(eq=False, repr=False)
class DatabaseTooNew(StoreError):
    """The database was upgraded by a newer flowengine."""

    url: str
    revision: str
    _text = (
        "the database {url} has schema revision {revision!r}, which this flowengine "
        "does not know: a newer version upgraded it; upgrade flowengine here too"
    )


@dataclass(eq=False, repr=False)
class DatabaseTooOld(StoreError):
    """The database needs an upgrade of its schema."""

    url: str
    revision: str
    head: str

    def __str__(self) -> str:
        return (
            f"the database {self.url} has schema revision {self.revision or 'none'!r}, this "
            f"flowengine needs {self.head!r}: run `flowengine db upgrade`, or `flowengine -A APP "
            "db upgrade` if a Celery app names the database"
        )


@dataclass(eq=False, repr=False)
class DatabaseReadOnly(StoreError):
    """The database cannot be written."""

    url: str
    _text = (
        "the database {url} cannot be written: give this user write permission for the "
        "file and its directory, or set another database in FLOWENGINE_DATABASE_URL"
    )


@dataclass(eq=False, repr=False)
class DatabaseBusy(StoreError):
    """Another transaction has locked the SQLite database."""

    url: str
    _text = (
        "the database {url} is locked by another transaction; if you start a run in your "
        "own transaction, call flowengine.default_engine() before you begin it"
    )


@dataclass(eq=False, repr=False)
class IllegalTransition(FlowengineError):
    """The table of a state machine has no such transition."""

    what: str
    state: str
    signal: str
    _text = "{what} is {state} and has no transition for {signal}"


@dataclass(eq=False, repr=False)
class _OperationError(FlowengineError):
    action: str
    reason: str = ""

    def __str__(self) -> str:
        return f"cannot {self.action}: {self.reason}" if self.reason else self.action


class MessageCoordinatorError(_OperationError):
    """A messaging operation failed."""


class RequestTimeout(MessageCoordinatorError, TimeoutError):
    """No reply to a request arrived in time."""

    def __init__(self, recipient: str, message_id: str, seconds: float) -> None:
        super().__init__(recipient, message_id)
        self.args = (recipient, message_id, seconds)
        self.recipient, self.message_id, self.seconds = recipient, message_id, seconds

    def __str__(self) -> str:
        return (
            f"agent {self.recipient} did not answer request {self.message_id!r} within "
            f"{self.seconds:g} s; the request has expired with the wait"
        )


class AgentRegistryError(_OperationError):
    """A registry operation failed."""


@dataclass(eq=False, repr=False)
class CircuitBreakerOpenError(FlowengineError):
    """A call was refused because its circuit breaker is open."""

    name: str
    retry_after: float
    reason: str = ""

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"circuit breaker {self.name!r} is open{why}: try again in {self.retry_after:.1f} s"


@dataclass(eq=False, repr=False)
class UnknownApp(FlowengineError, LookupError):
    """No Celery app has that name."""

    name: str
    reason: str
    _text = (
        "there is no Celery app {name!r}: {reason}; name it as for `celery -A`: proj.celery, proj "
        "if its module celery has the app, or proj.celery:app"
    )


@dataclass(eq=False, repr=False)
class InvalidSetting(FlowengineError):
    """An environment variable has an invalid value."""

    variable: str
    value: str
    expected: str

    def __str__(self) -> str:
        return f"{self.variable}={masked_url(self.value)!r} is not {self.expected}"


@dataclass(eq=False, repr=False)
class NotReplayable(FlowengineError, ValueError):
    """The export of a run does not have all that a replay needs."""

    run_id: str
    revision: int  #: of the first commit that cannot be evaluated again
    reason: str
    _text = "run {run_id} cannot be replayed at revision {revision}: {reason}"


# --- the agent SDK ---


@dataclass(eq=False, repr=False)
class InvalidConfig(FlowengineError, ValueError):
    """A field of the configuration of a poller or runner has a value that it cannot work with."""

    name: str
    value: object
    expected: str
    _text = "{name} is {value!r} in the configuration, and must be {expected}"


@dataclass(eq=False, repr=False)
class HandlerRefused(FlowengineError, ValueError):
    """A handler cannot be registered."""

    name: object
    reason: str
    _text = "the handler of {name!r} cannot be registered: {reason}"


@dataclass(eq=False, repr=False)
class PollerRefused(FlowengineError, RuntimeError):
    """A poller cannot do this in its present state."""

    reason: str
    _text = "{reason}"


@dataclass(eq=False, repr=False)
class TokenRefused(FlowengineError, ValueError):
    """An access token cannot be created or revoked so."""

    name: str
    reason: str
    _text = "access token {name!r}: {reason}"


@dataclass(eq=False, repr=False)
class HttpServerRefused(FlowengineError, OSError):
    """An HTTP server cannot be started."""

    host: str
    port: int
    reason: str
    attempts: int = 1  #: ports that were tried

    def __str__(self) -> str:
        last = self.port + self.attempts - 1
        ports = f"port {self.port}" if self.attempts == 1 else f"ports {self.port} to {last}"
        return (
            f"an HTTP server cannot be started on {self.host}, {ports}: {self.reason}; name a "
            "free port, or 0 for any, and a host of this machine"
        )


# --- events ---


@dataclass(eq=False, repr=False)
class FeedDisabled(FlowengineError, RuntimeError):
    """The events of all runs were asked for, and their commits are not numbered."""

    _text = (
        "the events of all runs need the setting event_feed: set FLOWENGINE_EVENT_FEED=on in every "
        "process that starts runs or works on them; those of one run need none: events(run_id, "
        "after=0)"
    )


@dataclass(eq=False, repr=False)
class EventRefused(FlowengineError, ValueError):
    """An event does not take this in its state."""

    event: str
    reason: str
    _text = "event {event}: {reason}"


# --- tools of the Model Context Protocol ---


@dataclass(eq=False, repr=False)
class ToolRefused(FlowengineError, ValueError):
    """A facet cannot be offered as a tool, or a call of a tool cannot be accepted."""

    name: str
    reason: str
    _text = "tool {name}: {reason}"


@dataclass(eq=False, repr=False)
class McpToolFailed(FlowengineError, RuntimeError):
    """The tool of an MCP server answered with an error, or the server was lost."""

    name: str
    reason: str
    _text = "MCP tool {name}: {reason}"


@dataclass(eq=False, repr=False)
class MissingExtra(FlowengineError, ImportError):
    """An optional package is not installed."""

    feature: str
    extra: str
    package: str
    _text = "{feature} needs the package {package!r}: pip install 'flowengine[{extra}]'"


# --- raised by the code of event facets ---


@dataclass(eq=False, repr=False)
class RetryAfter(FlowengineError):
    """Raised by an event facet: this try has failed, and the next one begins after that time.

    It counts as a try of the facet's retry policy, whose wait it replaces.
    """

    seconds: float
    reason: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.seconds, bool) or not isinstance(self.seconds, int | float):
            raise TypeError(f"RetryAfter takes a number of seconds, not {self.seconds!r}")
        if not 0 <= self.seconds < float("inf"):
            raise ValueError(f"RetryAfter takes seconds of 0 or more, not {self.seconds!r}")

    def __str__(self) -> str:
        return self.reason or f"to be tried again after {self.seconds:g} s"


@dataclass(eq=False, repr=False)
class GiveUp(FlowengineError):
    """Raised by an event facet: the step fails now, whatever tries its retry policy allows."""

    reason: str = "the facet gives up"

    _text = "{reason}"


# --- models ---


@dataclass(eq=False, repr=False)
class ModelError(FlowengineError):
    """A model was not asked, or gave no answer that can be used."""

    provider: str
    detail: str = ""
    is_transient: ClassVar[bool] = False  #: whether the same request may succeed later
    _what: ClassVar[str] = "the model gave no usable answer"
    _cure: ClassVar[str] = ""

    def __str__(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.provider}: {self._what}{detail}" + (f"; {self._cure}" if self._cure else "")


class ModelPackageMissing(ModelError, ImportError):
    """The package of a provider is not installed."""

    _what = "its package is not installed"

    def __str__(self) -> str:
        return f"{super().__str__()}; pip install 'flowengine[{self.provider}]'"


class ModelAuthenticationFailed(ModelError):
    """There is no API key, or the provider refuses it."""

    _what = "the request is not authorized"
    _cure = "set the API key in the environment of this process, or pass api_key="


@dataclass(eq=False, repr=False)
class ModelRateLimited(ModelError):
    """The provider refuses more requests for now."""

    retry_after: float | None = None  #: seconds, if the provider says so
    is_transient = True
    _what = "too many requests or tokens"
    _cure = "wait, lower the number of concurrent steps, or raise the limit of the account"


@dataclass(eq=False, repr=False)
class ModelOverloaded(ModelError):
    """The provider has an error of its own, or no capacity."""

    retry_after: float | None = None  #: seconds, if the provider says so
    is_transient = True
    _what = "the provider is overloaded or failed"
    _cure = "ask again later"


class ModelUnreachable(ModelError):
    """No connection to the provider."""

    is_transient = True
    _what = "the provider cannot be reached"
    _cure = "check the network and base_url"


class ModelTimedOut(ModelError):
    """The answer took longer than its timeout."""

    is_transient = True
    _what = "no answer in time"
    _cure = "raise timeout=, or lower max_tokens="


class ModelStreamCut(ModelError):
    """The connection was closed before the answer was complete."""

    is_transient = True
    _what = "the stream ended before the answer did"
    _cure = "ask again; check proxies between this process and the provider"


class ModelAnswerUnreadable(ModelError):
    """The provider sent something that is not its protocol."""

    is_transient = True
    _what = "the answer cannot be read"
    _cure = "check that base_url is the address of this provider's API"


class ModelRequestRefused(ModelError):
    """The provider refuses the request itself."""

    _what = "the request is refused"
    _cure = "correct the name of the model, the tools or the messages"


class ModelContextTooLong(ModelRequestRefused):
    """The messages do not fit the context of the model."""

    _what = "the messages are too long for the model"
    _cure = "shorten the arguments, the results of tools or the prompt, or take another model"


class ModelAnswerCut(ModelError):
    """The answer reached max_tokens."""

    _what = "the answer was cut at its limit of tokens"
    _cure = "raise max_tokens="


class ModelDeclined(ModelError):
    """The model refuses to answer."""

    _what = "the model declined to answer"
    _cure = "change the prompt"


class ModelResultRefused(ModelError):
    """A model gave no result that fits the declared results of a facet, repaired once."""

    _what = "the result does not fit, and neither does the repaired one"
    _cure = "make the prompt clearer, or the declared results simpler"


class ModelTurnsExceeded(ModelError):
    """A model went on asking for tools."""

    _what = "no result after the allowed number of turns"
    _cure = "raise max_turns=, or make the prompt clearer"


@dataclass(eq=False, repr=False)
class RunnerRefused(FlowengineError, ValueError):
    """A runner cannot be made or used like this."""

    reason: str
    _text = "{reason}"
