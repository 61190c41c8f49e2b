"""Addresses of a Redis as redis-py reads them.

Celery and kombu write some in another way: the certificate check of TLS by the name of a constant
of `ssl`, a socket file as ``redis+socket://``, and TLS also as a setting beside a plain address.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

_SCHEMES = {
    "redis": "redis",
    "rediss": "rediss",
    "unix": "unix",
    "redis+socket": "unix",
    "socket": "unix",
}
_CERT_REQS = {
    ssl.CERT_NONE: "none",
    ssl.CERT_OPTIONAL: "optional",
    ssl.CERT_REQUIRED: "required",
}


def redis_address(url: str, tls: Mapping[str, Any] | bool | None = None) -> str:
    """Return the address in the form of redis-py; empty if it is not that of one Redis.

    `tls` is Celery's ``broker_use_ssl`` or ``redis_backend_use_ssl``.
    """
    if ";" in url:  # several: a failover, not one Redis
        return ""
    parts = urlsplit(url)
    scheme = _SCHEMES.get(parts.scheme)
    if scheme is None:
        return ""
    options: dict[str, Any] = dict(parse_qsl(parts.query))
    if scheme == "unix" and (database := options.pop("virtual_host", "")):
        options.setdefault("db", database.strip("/"))
    if tls and scheme == "redis":
        scheme = "rediss"
        given = tls if isinstance(tls, Mapping) else {"ssl_cert_reqs": ssl.CERT_NONE}
        options = {name: value for name, value in given.items() if value is not None} | options
    if "ssl_cert_reqs" in options:
        options["ssl_cert_reqs"] = _cert_reqs(options["ssl_cert_reqs"])
    query = f"?{urlencode(options)}" if options else ""
    return f"{scheme}://{parts.netloc}{parts.path}{query}"


def _cert_reqs(given: Any) -> str:
    if isinstance(given, str):
        return given.removeprefix("CERT_").lower()
    return _CERT_REQS[ssl.VerifyMode(given)]
