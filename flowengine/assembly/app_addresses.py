"""The addresses of a Celery app: its database and its broker.

A process of an app with a broker on a network is refused without a database, and says at its start
which addresses it has.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from typing import Any

from flowengine.errors import StoreError
from flowengine.printable import masked_url
from flowengine.settings import Settings

log = logging.getLogger("flowengine")

_VARIABLE = "FLOWENGINE_DATABASE_URL"
#: Brokers that processes of one machine share, or one process has; the others are servers.
_LOCAL = frozenset(("memory", "filesystem", "sqla+sqlite", "sqlalchemy+sqlite"))


def names_database(app: Any, settings: Settings) -> bool:
    """Whether the environment, the app's configuration or its FlowEngine names a database."""
    if os.environ.get(_VARIABLE) or app.conf.get("flowengine_database_url"):
        return True
    return settings.database_url != Settings().database_url


def require_database(app: Any, settings: Settings, name: str = "") -> None:
    """Refuse an app that names no database; `name` is that of a command line."""
    if not names_database(app, settings):
        raise StoreError(
            f"the app {name or app.main or 'of Celery'} names no database: set "
            f"flowengine_database_url in its configuration, or {_VARIABLE}; without it each "
            "process would open a SQLite file flowengine.db in its own working directory"
        )


def require_shared_database(app: Any, settings: Settings, name: str = "") -> None:
    """Refuse an app with a network broker that names no database: its processes share none."""
    if not has_local_broker(app):
        require_database(app, settings, name)


def has_local_broker(app: Any) -> bool:
    return all(_scheme(app, url) in _LOCAL for url in broker_urls(app))


def broker_urls(app: Any) -> list[str]:
    """Return the URLs of the broker that the app sends to; several are alternatives."""
    given = app.conf.broker_write_url or "amqp://"
    urls = given.split(";") if isinstance(given, str) else given
    return [str(url) for url in urls]


_PORTS = {"redis": 6379, "rediss": 6379, "amqp": 5672, "amqps": 5671}
_NAMES = {"pyamqp": "amqp", "librabbitmq": "amqp"}


def broker_fingerprint(app: Any) -> str:
    """Return a hash of the broker's address, without user, password and options.

    Servers with the same one can wake each other. Alternatives of a failover are one broker.
    """
    if app.conf.get("task_always_eager"):
        return ""
    places = sorted(_place(_scheme(app, url), url) for url in broker_urls(app))
    return hashlib.sha256("\n".join(places).encode()).hexdigest()[:12]


def _place(scheme: str, url: str) -> str:
    scheme = _NAMES.get(scheme, scheme)
    rest = url.partition("://")[2].rpartition("@")[2].partition("?")[0]
    server, _, path = rest.partition("/")
    host, _, port = server.partition(":") if server.count(":") <= 1 else (server, "", "")
    default = _PORTS.get(scheme, "")
    if scheme in _PORTS:
        path = path.strip("/") or ("0" if scheme.startswith("redis") else "/")
    return f"{scheme}://{(host or 'localhost').lower()}:{port or default}/{path}"


def _scheme(app: Any, url: str) -> str:
    scheme, mark, _ = url.partition("://")
    return str(scheme if mark else app.conf.broker_transport or scheme).lower()


def shown_addresses(app: Any, settings: Settings) -> str:
    """Return the database and the broker for a line of the log, without passwords."""
    database = masked_url(settings.database_url)
    if settings.schema:
        database += f" (schema {settings.schema})"
    return f"database {database}, broker {';'.join(map(masked_url, broker_urls(app)))}"


# --- the start of a worker or beat ---


def refuse_unnamed_database(app: Any, settings: Settings) -> None:
    """End a worker or beat whose app has a network broker and names no database."""
    try:
        require_shared_database(app, settings)
    except StoreError as problem:
        # Celery logs an exception of a signal's receiver, and goes on.
        raise SystemExit(f"Error: {problem}") from None


def report_start(
    app: Any, settings: Settings, who: str, queues: Sequence[str], *, quiet: bool = False
) -> None:
    """Log which addresses and task lists a process has; print it if its log shows no INFO."""
    line = f"{who}: {shown_addresses(app, settings)}, task lists {', '.join(queues) or 'none'}"
    if log.isEnabledFor(logging.INFO):
        log.info("%s", line, extra={"action": "started"})
    elif not quiet:  # beside Celery's banner
        print(line, flush=True)
