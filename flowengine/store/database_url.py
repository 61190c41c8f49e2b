"""The URL of a database: parsed, compared, and given a limit for connecting."""

from __future__ import annotations

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from flowengine.errors import StoreError
from flowengine.printable import masked_url

_CONNECT_TIMEOUT = "connect_timeout"  #: of libpq
_POSTGRES_PORT = 5432


def parsed_url(url: str) -> URL:
    """Parse a URL; raise StoreError, without its password, if it is none."""
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        raise StoreError(
            f"{masked_url(str(url))!r} is not the URL of a database: set FLOWENGINE_DATABASE_URL "
            "to one like sqlite:///flowengine.db or postgresql+psycopg://user@host:5432/name"
        ) from None


def with_connect_timeout(url: str, seconds: int) -> str:
    """Return a URL whose server is given up after some seconds, unless the URL has a limit."""
    parsed = parsed_url(url)
    if not _has_server(parsed) or _CONNECT_TIMEOUT in parsed.query:
        return url
    limited = parsed.update_query_dict({_CONNECT_TIMEOUT: str(seconds)})
    return limited.render_as_string(hide_password=False)


def is_same_database(one: URL, other: URL) -> bool:
    """Whether two URLs name the same database, with whichever user and options."""
    return _place(one) == _place(other)


def _has_server(url: URL) -> bool:
    return url.get_backend_name() != "sqlite"


def _place(url: URL) -> tuple[object, ...]:
    place = (url.get_backend_name(), url.database)
    if not _has_server(url):
        return place
    port = url.port or url.query.get("port") or _POSTGRES_PORT
    return (*place, url.host or url.query.get("host", ""), int(str(port)))
