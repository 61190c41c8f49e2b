"""The exceptions of flowengine.

- FlowengineError
  · ProgramError           a program cannot be loaded or started
    · InvalidText          … because its AFL text has a syntax error
    · InvalidProgram       … because of the problems it lists
    · UnknownWorkflow      … because it has no workflow of that name
    · InvalidInputs        … because the inputs are invalid
  · AuthoringError         a decorated function cannot be compiled
    · SymbolMisuse         … because code needs a value that exists only in the run
    · UntraceableCode      … because a trace would misinterpret its source
    · DoesNotFit           arguments or a result violate an event facet's annotations
    · MissingCode          this process has no Python function for an event facet
  · ScriptFailed           a script block raised, exceeded a limit or returned no map
  · ValueRefused           a value cannot be stored
    · NotJson              … because JSON has no form for it
    · TooLarge             … because it exceeds the limit
  · UnknownRun, AmbiguousRun, UnknownStep
  · RunFailed              run.result() of a run that failed
  · PartlyStarted          start_many() started some runs before a commit failed
  · StoreError
    · DatabaseTooNew       the database was upgraded by a newer flowengine
    · DatabaseTooOld       the database needs `flowengine db upgrade`
    · DatabaseReadOnly     the database cannot be written
    · DatabaseBusy         another transaction has locked the database
  · MessageCoordinatorError  a messaging operation failed
    · RequestTimeout       … because no reply arrived in time
  · AgentRegistryError     a registry operation failed
  · CircuitBreakerOpenError  a call was refused because its breaker is open
  · InvalidSetting         an environment variable has an invalid value
  · IllegalTransition      a state machine has no such transition

Invariant: ``args`` are the constructor's arguments, because Celery and pickle rebuild an
exception as ``cls(*args)``; ``__str__`` composes the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class FlowengineError(Exception):
    """The base class of all errors of flowengine."""


class ProgramError(FlowengineError):
    """A program cannot be loaded or started."""


class InvalidText(ProgramError):
    """An AFL text has a syntax error."""

    def __init__(
        self, file: str, line: int, column: int, what: str, source: str = "", hint: str = ""
    ) -> None:
        super().__init__(file, line, column, what, source, hint)
        self.file, self.line, self.column = file, line, column  #: line and column from 1
        self.what, self.hint = what, hint
        self.source = source  #: the line of the text

    def __str__(self) -> str:
        place = (
            f"{self.file}:{self.line}:{self.column}"
            if self.file
            else (f"line {self.line}, column {self.column}")
        )
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
        return f"{self.where}: {self.what}" if self.where else self.what


class InvalidProgram(ProgramError):
    """A program has problems that the linker finds."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(list(problems))
        self.problems = list(problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f"the program cannot be loaded: {self.problems[0]}"
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        return f"the program cannot be loaded, {len(self.problems)} problems:\n{lines}"


class UnknownWorkflow(ProgramError):
    """A program has no workflow of that name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(name, list(known))
        self.name, self.known = name, list(known)

    def __str__(self) -> str:
        known = ", ".join(self.known) or "none"
        return f"the program has no workflow {self.name!r}; it declares: {known}"


class InvalidInputs(ProgramError):
    """The inputs of a start do not match the workflow's parameters."""

    def __init__(self, workflow: str, problems: Sequence[str]) -> None:
        super().__init__(workflow, list(problems))
        self.workflow, self.problems = workflow, list(problems)

    def __str__(self) -> str:
        return f"workflow {self.workflow!r} cannot be started: {'; '.join(self.problems)}"


class AuthoringError(FlowengineError):
    """A decorated function cannot become a program."""


class SymbolMisuse(AuthoringError, TypeError):
    """Code needs the value of a symbol, which exists only in the run."""


class UntraceableCode(AuthoringError):
    """A trace would silently misinterpret the source of a function."""

    def __init__(self, function: str, findings: Sequence[Problem]) -> None:
        super().__init__(function, list(findings))
        self.function, self.findings = function, list(findings)

    def __str__(self) -> str:
        lines = "\n".join(f"  - {finding}" for finding in self.findings)
        return f"the body of {self.function!r} cannot be traced:\n{lines}"


class DoesNotFit(AuthoringError, TypeError):
    """Arguments or result of an event facet violate its annotations."""

    def __init__(self, facet: str, problems: Sequence[str]) -> None:
        super().__init__(facet, list(problems))
        self.facet, self.problems = facet, list(problems)

    def __str__(self) -> str:
        return f"event facet {self.facet!r}: {'; '.join(self.problems)}"


class MissingCode(AuthoringError):
    """This process has no code for an event facet."""

    def __init__(self, facet: str) -> None:
        super().__init__(facet)
        self.facet = facet

    def __str__(self) -> str:
        return (
            f"no Python code for event facet {self.facet!r} in this process: import the module "
            "that decorates it with @event_facet, or run a worker that has it"
        )


class ScriptFailed(FlowengineError):
    """A script block raised, exceeded its time or memory limit, or returned no map."""


class ValueRefused(FlowengineError, ValueError):
    """A value cannot be stored."""


class NotJson(ValueRefused):
    """A value has no JSON form."""

    def __init__(self, what: str, where: str, type_name: str) -> None:
        super().__init__(what, where, type_name)
        self.what, self.where, self.type_name = what, where, type_name

    def __str__(self) -> str:
        return (
            f"{self.what} is not JSON: {self.where} is a {self.type_name}; "
            "annotate it with a type pydantic can write, or return text, numbers, lists and maps"
        )


class TooLarge(ValueRefused):
    """A value exceeds the size limit of one stored value."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(what, size, limit)
        self.what, self.size, self.limit = what, size, limit

    def __str__(self) -> str:
        return (
            f"{self.what} takes {self.size:,} bytes as JSON, the limit is {self.limit:,}: put the "
            "data in a file or an object store and pass its address, or raise "
            "FLOWENGINE_MAX_VALUE_BYTES"
        )


class UnknownRun(FlowengineError, LookupError):
    """No run has that id."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id

    def __str__(self) -> str:
        return f"there is no run {self.run_id!r} in this database; `flowengine list` shows the runs"


class AmbiguousRun(FlowengineError, LookupError):
    """Several run ids start with that prefix."""

    def __init__(self, beginning: str) -> None:
        super().__init__(beginning)
        self.beginning = beginning

    def __str__(self) -> str:
        return f"several run ids start with {self.beginning!r}: give a longer prefix"


class UnknownStep(FlowengineError, LookupError):
    """No step has that id."""

    def __init__(self, step_id: str) -> None:
        super().__init__(step_id)
        self.step_id = step_id

    def __str__(self) -> str:
        return f"there is no step {self.step_id!r} in this database"


class RunFailed(FlowengineError):
    """The run has failed, so it has no result."""

    def __init__(self, run_id: str, path: str, error_type: str, message: str) -> None:
        super().__init__(run_id, path, error_type, message)
        self.run_id, self.path = run_id, path
        self.error_type, self.message = error_type, message

    def __str__(self) -> str:
        return (
            f"run {self.run_id} failed at {self.path}: {self.error_type}: {self.message} "
            f"(`flowengine show {self.run_id}` shows every step)"
        )


class PartlyStarted(FlowengineError):
    """`start_many` started some runs before a later commit failed."""

    def __init__(self, started: Sequence[Any], requested: int, problem: Exception) -> None:
        super().__init__(started, requested, problem)
        self.started, self.requested, self.problem = list(started), requested, problem

    def __str__(self) -> str:
        return (
            f"{len(self.started)} of {self.requested} runs were started before "
            f"{type(self.problem).__name__}: {self.problem}. They continue and are in the "
            "error's `started`; start only the remaining inputs again"
        )


class StoreError(FlowengineError):
    """The database cannot be used."""


class DatabaseTooNew(StoreError):
    """The database was upgraded by a newer flowengine."""

    def __init__(self, url: str, revision: str) -> None:
        super().__init__(url, revision)
        self.url, self.revision = url, revision

    def __str__(self) -> str:
        return (
            f"the database {self.url} has schema revision {self.revision!r}, which this flowengine "
            "does not know: a newer version upgraded it; upgrade flowengine here too"
        )


class DatabaseTooOld(StoreError):
    """The database needs an upgrade of its schema."""

    def __init__(self, url: str, revision: str, head: str) -> None:
        super().__init__(url, revision, head)
        self.url, self.revision, self.head = url, revision, head

    def __str__(self) -> str:
        return (
            f"the database {self.url} has schema revision {self.revision or 'none'!r}, this "
            f"flowengine needs {self.head!r}: run `flowengine db upgrade`"
        )


class DatabaseReadOnly(StoreError):
    """The database cannot be written."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url

    def __str__(self) -> str:
        return (
            f"the database {self.url} cannot be written: give this user write permission for the "
            "file and its directory, or set another database in FLOWENGINE_DATABASE_URL"
        )


class IllegalTransition(FlowengineError):
    """The table of a state machine has no such transition."""

    def __init__(self, what: str, state: str, signal: str) -> None:
        super().__init__(what, state, signal)
        self.what, self.state, self.signal = what, state, signal

    def __str__(self) -> str:
        return f"{self.what} is {self.state} and has no transition for {self.signal}"


class DatabaseBusy(StoreError):
    """Another transaction has locked the SQLite database."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url

    def __str__(self) -> str:
        return (
            f"the database {self.url} is locked by another transaction; if you start a run in your "
            "own transaction, call flowengine.default_engine() before you begin it"
        )


class MessageCoordinatorError(FlowengineError):
    """A messaging operation failed."""

    def __init__(self, action: str, reason: str = "") -> None:
        super().__init__(action, reason)
        self.action, self.reason = action, reason

    def __str__(self) -> str:
        return f"cannot {self.action}: {self.reason}" if self.reason else self.action


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


class AgentRegistryError(FlowengineError):
    """A registry operation failed."""

    def __init__(self, action: str, reason: str = "") -> None:
        super().__init__(action, reason)
        self.action, self.reason = action, reason

    def __str__(self) -> str:
        return f"cannot {self.action}: {self.reason}" if self.reason else self.action


class CircuitBreakerOpenError(FlowengineError):
    """A call was refused because its circuit breaker is open."""

    def __init__(self, name: str, retry_after: float, reason: str = "") -> None:
        super().__init__(name, retry_after, reason)
        self.name, self.retry_after, self.reason = name, retry_after, reason

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"circuit breaker {self.name!r} is open{why}: try again in {self.retry_after:.1f} s"


class InvalidSetting(FlowengineError):
    """An environment variable has an invalid value."""

    def __init__(self, variable: str, value: str, expected: str) -> None:
        super().__init__(variable, value, expected)
        self.variable, self.value, self.expected = variable, value, expected

    def __str__(self) -> str:
        return f"{self.variable}={self.value!r} is not {self.expected}"
