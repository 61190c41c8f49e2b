"""Keys that encrypt secrets before they are stored, and the stored form of a secret.

A secret is stored as ``{"$secret": TOKEN}``. The token is Fernet's: AES-128 in CBC mode and an HMAC
(SHA-256), under a key that HKDF derives from a configured one. The first key encrypts, all of them
decrypt. Only the facets of your code and the reader of a result decrypt; the engine passes the
stored form on. `cryptography` is an optional package, imported here alone.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from flowengine.errors import SecretRefused, SecretUnreadable
from flowengine.settings import Settings
from flowengine.step_logs.redaction import HIDDEN as HIDDEN
from flowengine.step_logs.redaction import note_secret

VARIABLE = "FLOWENGINE_SECRET_KEYS"
MARK = "$secret"  #: the only key of the map that is a stored secret

_NO_KEYS = (
    f"no key is configured to encrypt it: set {VARIABLE} (openssl rand -hex 32) for all processes "
    "that start runs and for all workers, or pass the name of the secret and read it in the facet"
)
_NO_PACKAGE = "the package cryptography is not installed: pip install 'flowengine[secrets]'"
_INFO = b"flowengine secrets"

Source = Callable[[], str]


def _configured() -> str:
    return Settings.from_environment().secret_keys


_source: Source = _configured


def set_secret_key_source(source: Source | None) -> Source:
    """Set the source of the setting `secret_keys`, None for the environment; return the previous.

    It is asked for each secret: an app may be configured after its workflows are declared.
    """
    global _source
    previous, _source = _source, source or _configured
    return previous


def problem_of_keys() -> str:
    """Return the reason why this process cannot encrypt, with the cure; empty if it can."""
    found = _usable()
    return found if isinstance(found, str) else ""


def encrypted(plain: bytes) -> dict[str, str]:
    """Return the stored form of a secret; raises SecretRefused without a key."""
    ciphers = _usable()
    if isinstance(ciphers, str):
        raise SecretRefused("a secret", "it", ciphers)
    token: bytes = ciphers.encrypt(plain)
    return {MARK: token.decode("ascii")}


def decrypted(stored: Any) -> bytes:
    """Return the content of a stored secret; raises SecretUnreadable."""
    ciphers = _usable()
    if isinstance(ciphers, str):
        raise SecretUnreadable(ciphers)
    from cryptography.fernet import InvalidToken

    try:
        plain: bytes = ciphers.decrypt(stored[MARK].encode())
    except (InvalidToken, AttributeError):
        raise SecretUnreadable(
            f"no key of this process has encrypted it: give {VARIABLE} the same keys everywhere, "
            "and keep a replaced key until the runs that used it have ended"
        ) from None
    with suppress(ValueError):
        note_secret(json.loads(plain))
    return plain


def is_stored_secret(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and MARK in value


def count_stored(value: Any) -> int:
    """Return the number of stored secrets in a value."""
    if isinstance(value, dict):
        return 1 if is_stored_secret(value) else sum(map(count_stored, value.values()))
    return sum(map(count_stored, value)) if isinstance(value, list) else 0


def without_secrets(value: Any) -> Any:
    """Return a value as people see it: with asterisks in the place of secrets."""
    if isinstance(value, dict):
        if is_stored_secret(value):
            return HIDDEN
        return {name: without_secrets(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(item) for item in value]
    return value


def _usable() -> Any:
    """Return the ciphers of the keys, or as text the reason why there are none."""
    text = _source()
    if not text.strip():
        return _NO_KEYS
    try:
        return _ciphers(text)
    except ModuleNotFoundError:
        return _NO_PACKAGE


def aes_gcm(key: bytes) -> Any:
    """Return AES-GCM with a key of 16, 24 or 32 bytes; raise SecretRefused without the package."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError:
        raise SecretRefused("a value", "it", _NO_PACKAGE) from None
    return AESGCM(key)


@functools.lru_cache(maxsize=8)
def _ciphers(text: str) -> Any:
    from cryptography.fernet import Fernet, MultiFernet
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    def cipher(key: str) -> Fernet:
        derived = HKDF(SHA256(), length=32, salt=None, info=_INFO).derive(key.encode())
        return Fernet(base64.urlsafe_b64encode(derived))

    return MultiFernet([cipher(key.strip()) for key in text.split(",") if key.strip()])
