"""Failures of providers as errors of one tree. Pure: no provider's package is needed here."""

from __future__ import annotations

import email.utils
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from flowengine.errors import (
    ModelAnswerUnreadable,
    ModelAuthenticationFailed,
    ModelContextTooLong,
    ModelError,
    ModelOverloaded,
    ModelRateLimited,
    ModelRequestRefused,
    ModelStreamCut,
    ModelTimedOut,
    ModelUnreachable,
)
from flowengine.printable import printable

_LONGEST = 500  #: characters of a provider's message
_TOO_LONG = ("prompt is too long", "context length", "context_length", "context window")

#: By the type that the body names. It counts more than the status: an error inside a stream comes
#: with status 200.
_BY_KIND: dict[str, type[ModelError]] = {
    "authentication_error": ModelAuthenticationFailed,
    "permission_error": ModelAuthenticationFailed,
    "invalid_api_key": ModelAuthenticationFailed,
    "rate_limit_error": ModelRateLimited,
    "rate_limit_exceeded": ModelRateLimited,
    "insufficient_quota": ModelRateLimited,
    "overloaded_error": ModelOverloaded,
    "api_error": ModelOverloaded,
    "server_error": ModelOverloaded,
    "timeout_error": ModelTimedOut,
    "request_too_large": ModelContextTooLong,
    "context_length_exceeded": ModelContextTooLong,
    "not_found_error": ModelRequestRefused,
    "invalid_request_error": ModelRequestRefused,
}
_BY_STATUS: dict[int, type[ModelError]] = {
    401: ModelAuthenticationFailed,
    403: ModelAuthenticationFailed,
    408: ModelTimedOut,
    413: ModelContextTooLong,
    429: ModelRateLimited,
    504: ModelTimedOut,
}


def refused(
    provider: str,
    status: int,
    kinds: tuple[str | None, ...],
    message: str,
    headers: Mapping[str, str],
) -> ModelError:
    """Return the error for a response that is none of success."""
    kind = next((_BY_KIND[name] for name in kinds if name in _BY_KIND), None)
    if kind is None:
        kind = _BY_STATUS.get(status)
    if kind is None:
        kind = ModelOverloaded if status >= 500 or status < 400 else ModelRequestRefused
    if kind is ModelRequestRefused and any(text in message.lower() for text in _TOO_LONG):
        kind = ModelContextTooLong
    detail = f"{status}: {shown(message)}" if status >= 400 else shown(message)
    if kind is ModelRateLimited:
        return ModelRateLimited(provider, detail, retry_after(headers))
    if kind is ModelOverloaded:
        return ModelOverloaded(provider, detail, retry_after(headers))
    return kind(provider, detail)


def broken(provider: str, problem: BaseException, *, has_begun: bool) -> ModelError:
    """Return the error for an exception of the connection, or of what came over it."""
    names = {kind.__name__ for kind in type(problem).__mro__}
    detail = shown(f"{type(problem).__name__}: {problem}")
    if any("Timeout" in name for name in names):
        return ModelTimedOut(provider, detail)
    if names & {"JSONDecodeError", "UnicodeDecodeError", "DecodingError", "KeyError", "TypeError"}:
        return ModelAnswerUnreadable(provider, detail)
    if "ValueError" in names or "APIResponseValidationError" in names:
        return ModelAnswerUnreadable(provider, detail)
    return (ModelStreamCut if has_begun else ModelUnreachable)(provider, detail)


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the seconds that a response asks to wait: a number or a date, or nothing."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    given = headers.get("retry-after")
    seconds = _number(given)
    if seconds is not None or not given:
        return seconds
    try:
        at = email.utils.parsedate_to_datetime(given)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (at - (now or datetime.now(UTC))).total_seconds())


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None


def shown(text: Any) -> str:
    """Return a provider's text for an error: on one line, safe to show, of limited length."""
    line = " ".join(printable(str(text)).split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
