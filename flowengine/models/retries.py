"""When to ask a provider again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from flowengine.errors import ModelError, RunnerRefused


@dataclass(frozen=True, slots=True)
class ModelRetry:
    """How often a failed request is repeated, and after how long.

    The wait is the one that the provider demands (`Retry-After`), else 1, 2, 4 … seconds. A demand
    for longer than `max_wait` ends the try of the step. The demand is the due time of the next try,
    if the retry policy of the facet allows one; no thread waits for it.
    """

    attempts: int = 4  #: requests for one answer, the first included
    first_wait: float = 1.0  #: seconds
    max_wait: float = 60.0  #: seconds

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first_wait < 0 or self.max_wait < 0:
            raise RunnerRefused(
                "ModelRetry takes attempts of at least 1, and seconds of at least 0"
            )

    def wait_after(self, problem: ModelError, attempt: int) -> float | None:
        """Return the seconds until the next request; None: give up."""
        if not problem.is_transient or attempt >= self.attempts:
            return None
        demanded = getattr(problem, "retry_after", None)
        if demanded is not None:
            return float(demanded) if demanded <= self.max_wait else None
        return min(self.first_wait * 2.0 ** min(attempt - 1, 30), self.max_wait)
