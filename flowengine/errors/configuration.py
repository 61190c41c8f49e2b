"""Errors of the configuration of a process: its settings, app, packages and addresses."""

from __future__ import annotations

from dataclasses import dataclass

from flowengine.errors.flowengine_error import FlowengineError
from flowengine.printable import masked_url


@dataclass(eq=False, repr=False)
class InvalidSetting(FlowengineError):
    """An environment variable has an invalid value."""

    variable: str
    value: str
    expected: str

    def __str__(self) -> str:
        return f"{self.variable}={masked_url(self.value)!r} is not {self.expected}"


@dataclass(eq=False, repr=False)
class LimitReached(FlowengineError):
    """Something would exceed a limit of the settings."""

    what: str
    limit: int
    setting: str
    cure: str
    _text = "{what}: the limit is {limit:,} (setting {setting}); {cure}, or raise the limit"


@dataclass(eq=False, repr=False)
class InvalidConfig(FlowengineError, ValueError):
    """A field of the configuration of a poller or runner has a value that it cannot work with."""

    name: str
    value: object
    expected: str
    _text = "{name} is {value!r} in the configuration, and must be {expected}"


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
class MissingExtra(FlowengineError, ImportError):
    """An optional package is not installed."""

    feature: str
    extra: str
    package: str
    _text = "{feature} needs the package {package!r}: pip install 'flowengine[{extra}]'"


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
