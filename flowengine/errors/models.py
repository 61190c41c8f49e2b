"""Errors of language models and their providers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flowengine.errors.flowengine_error import FlowengineError


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
