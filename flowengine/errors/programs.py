"""Errors of programs: their text, their functions, their inputs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flowengine.errors.flowengine_error import FlowengineError
from flowengine.printable import printable

_SUBJECT = re.compile(
    r"(?:unknown )?(?:input )?'[^']*'|"
    r"the (?:inputs|keys?|labels|option if_failed|priority|tenant)\b"
)


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
class UnpublishedWorkflow(ProgramError, LookupError):
    """The catalogue has no workflow of that name."""

    name: str
    hint: str = ""
    _text = (
        "there is no workflow {name!r} in the catalogue{hint}: a worker that has it publishes it "
        "when it starts, `flowengine push` publishes documents, `flowengine workflows` shows all"
    )


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
class StartRefused(ProgramError):
    """A message that asks for a run (`flowengine.execute`, or a former task) started none."""

    workflow: str
    reason: str  #: without values of inputs: logs, Flower and result backends show it
    _text = "the message started no run of {workflow!r}: {reason}"


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


#: Types of stored errors whose messages name values, after a subject or anywhere.
_WITH_PROBLEMS = frozenset({"DoesNotFit", "InvalidInputs", "TypeMismatch"})
_QUOTING = frozenset(
    {"EvaluationError", "InvalidWait", "NoCaseMatches", "InvalidCacheKey", "InvalidLimitKey"}
)


def message_without_values(kind: str, message: str) -> str:
    """The message of a stored error for logs; empty if it may quote a value anywhere."""
    if kind in _WITH_PROBLEMS:
        subject, _, problems = message.partition(": ")
        # Of the first problem alone: a value may look like another one.
        return f"{subject}: {_names([problems])}" if problems else ""
    return "" if kind in _QUOTING else message


class AuthoringError(FlowengineError):
    """A decorated function cannot become a program."""


@dataclass(eq=False, repr=False)
class CanvasRefused(AuthoringError):
    """A canvas of Celery has parts that no program can carry."""

    problems: list[Problem]  #: each with its place in the canvas, and its cure

    @property
    def is_incomplete(self) -> bool:
        """Whether it lacks nothing but arguments, which its start may give."""
        return all("is missing" in problem.what for problem in self.problems)

    def __str__(self) -> str:
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        return f"the canvas cannot be imported, {count}:\n{lines}"


class CeleryTaskWarning(UserWarning):
    """A Celery task does something that it cannot do as a step."""


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
    kind: str = "event facet"  #: of the thing with that name: or workflow, function, agent

    def __str__(self) -> str:
        return f"{self.kind} {self.facet!r}: {'; '.join(self.problems)}"

    def without_values(self) -> str:
        return f"{self.kind} {self.facet!r}: {_names(self.problems)}"


@dataclass(eq=False, repr=False)
class MissingCode(AuthoringError):
    """This process has no code for an event facet."""

    facet: str
    _text = (
        "no Python code for event facet {facet!r} in this process: import the module "
        "that decorates it with @event_facet, or run a worker that has it"
    )
