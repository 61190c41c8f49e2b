"""Errors of documents: workflows that are written as YAML."""

from __future__ import annotations

from dataclasses import dataclass

from flowengine.errors.programs import ProgramError
from flowengine.printable import printable


@dataclass(frozen=True)
class DocumentProblem:
    """One problem of a document, with its place."""

    file: str
    line: int  #: from 1
    column: int  #: from 1
    what: str  #: the problem, and the cure if there is one

    @property
    def place(self) -> str:
        if self.file:
            return f"{self.file}:{self.line}:{self.column}"
        return f"line {self.line}, column {self.column}"

    def __str__(self) -> str:
        # One line, whatever names the document has.
        return printable(f"{self.place}: {self.what}")


@dataclass(eq=False, repr=False)
class InvalidDocument(ProgramError):
    """A document has problems; all of them are listed."""

    problems: list[DocumentProblem]

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)
