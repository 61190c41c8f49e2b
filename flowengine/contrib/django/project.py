"""The settings of a Django project that concern flowengine: `FLOWENGINE` and `DATABASES`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from flowengine.settings import Settings

#: Keys of `FLOWENGINE` that are no settings of flowengine itself.
_OWN = {"DATABASE": "default", "PAGES_URL": ""}
_POSTGRES = ("django.db.backends.postgresql", "django.contrib.gis.db.backends.postgis")
_SQLITE = ("django.db.backends.sqlite3", "django.contrib.gis.db.backends.spatialite")


def _given() -> Mapping[str, Any]:
    given = getattr(settings, "FLOWENGINE", {})
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured("FLOWENGINE must be a dictionary of settings")
    known = {field.name.upper() for field in fields(Settings)} | _OWN.keys()
    if unknown := sorted(set(given) - known):
        raise ImproperlyConfigured(
            f"FLOWENGINE has the unknown key {unknown[0]!r}; the keys are DATABASE, PAGES_URL and "
            "the settings of flowengine in upper case, for instance 'TENANT'"
        )
    return given


def own_setting(name: str) -> str:
    """Return `DATABASE`, the alias of the database, or `PAGES_URL`, the address of Flower."""
    return str(_given().get(name, _OWN[name]))


def project_settings() -> Mapping[str, Any]:
    """Return the settings of flowengine that the project has, by their names."""
    values = {name.lower(): value for name, value in _given().items() if name not in _OWN}
    if "database_url" not in values and (url := database_url(own_setting("DATABASE"))):
        values["database_url"] = url
    return values


def database_url(alias: str) -> str:
    """Return the URL of a database of the project; empty if flowengine cannot use it."""
    from django.db import connections  # needs the settings

    # `settings_dict` follows the name of the database of a test run.
    given = connections[alias].settings_dict
    name = str(given["NAME"] or "")
    if given["ENGINE"] in _SQLITE:
        return "" if _is_in_memory(name) else f"sqlite:///{Path(name).absolute()}"
    if given["ENGINE"] not in _POSTGRES:
        return ""
    host, query = str(given.get("HOST") or ""), _text_options(given)
    if host.startswith("/"):
        host, query = "", {**query, "host": host}
    user, password = str(given.get("USER") or ""), str(given.get("PASSWORD") or "")
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    port = f":{given['PORT']}" if given.get("PORT") and host else ""
    if given.get("PORT") and not host:
        query["port"] = str(given["PORT"])
    address = f"{login}@{host}{port}" if login else f"{host}{port}"
    return f"postgresql://{address}/{quote(name, safe='')}" + (
        f"?{urlencode(query)}" if query else ""
    )


def _is_in_memory(name: str) -> bool:
    return name in ("", ":memory:") or "mode=memory" in name


def _text_options(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the connection options that belong into a URL: certificates, timeouts, a service."""
    options = given.get("OPTIONS", {})
    return {name: str(value) for name, value in options.items() if isinstance(value, str | int)}
