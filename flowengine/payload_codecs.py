"""Codecs of stored values: encryption with AES-GCM, and compression.

A codec has `encode(bytes) -> bytes` and `decode(bytes) -> bytes`, and perhaps a class method
`from_settings(settings)`. One with several keys may have `key_of(bytes) -> str`, `present_key` and
`key_ids`, so that `flowengine keys` tells which are in use. Name your own as module:Class in the
setting `payload_codec`. It is applied to parameters, results, errors, answers and large values, in
the database and in the spool; not to names, paths, labels, keys and times, by which runs are found.
Keys are never stored.
"""

from __future__ import annotations

import functools
import importlib
import os
import zlib
from typing import Any, Self

from flowengine.errors import InvalidSetting, PayloadUnreadable
from flowengine.secret_keys import aes_gcm
from flowengine.settings import Settings

_VARIABLE, _KEYS = "FLOWENGINE_PAYLOAD_CODEC", "FLOWENGINE_PAYLOAD_KEYS"
_NONCE = 12  #: bytes
_SIZES = (16, 24, 32)  #: bytes of a key


class AesGcmCodec:
    """Encrypts with AES-GCM under the first key; decrypts with the key that a value names.

    A stored value is the length of the key's id, the id, a random nonce of 12 bytes and the
    ciphertext with its tag. The id is authenticated with the value.
    """

    def __init__(self, keys: dict[str, bytes]) -> None:
        if not keys:
            raise InvalidSetting(_KEYS, "", "at least one key, as id=64 hexadecimal digits")
        self._ciphers = {key_id: aes_gcm(key) for key_id, key in keys.items()}
        self._current = next(iter(keys))
        self.key_ids = tuple(keys)

    @property
    def present_key(self) -> str:
        """The id of the key that encrypts."""
        return self._current

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        return cls(_parsed(settings.payload_keys))

    def encode(self, plain: bytes) -> bytes:
        name = self._current.encode()
        header = bytes([len(name)]) + name
        nonce = os.urandom(_NONCE)
        sealed: bytes = self._ciphers[self._current].encrypt(nonce, plain, header)
        return header + nonce + sealed

    @staticmethod
    def key_of(stored: bytes) -> str:
        """Return the id of the key of a stored value, of which the beginning suffices."""
        return stored[1 : 1 + stored[0]].decode("utf-8", "replace")

    def decode(self, stored: bytes) -> bytes:
        end = 1 + stored[0]
        header, nonce, sealed = stored[:end], stored[end : end + _NONCE], stored[end + _NONCE :]
        key_id = header[1:].decode("utf-8", "replace")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise PayloadUnreadable(
                f"it was encrypted with the key {key_id!r}, which this process does not have: add "
                f"it to {_KEYS} behind the current key, until no stored run needs it"
            )
        try:
            plain: bytes = cipher.decrypt(nonce, sealed, header)
        except Exception:  # InvalidTag: cryptography is imported in one module
            raise PayloadUnreadable(
                f"the key {key_id!r} of this process is another than the one that encrypted it, or "
                "the value was changed"
            ) from None
        return plain


class ZlibCodec:
    """Compresses values: for large texts and little CPU time."""

    def encode(self, plain: bytes) -> bytes:
        return zlib.compress(plain, 6)

    def decode(self, stored: bytes) -> bytes:
        return zlib.decompress(stored)


def _parsed(text: str) -> dict[str, bytes]:
    keys: dict[str, bytes] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key_id, _, digits = part.partition("=")
        try:
            key = bytes.fromhex(digits)
        except ValueError:
            key = b""
        if not 0 < len(key_id.encode()) < 256 or len(key) not in _SIZES or key_id in keys:
            # Without the value: a key must not appear in an error.
            expected = "keys as id=64 hexadecimal digits (openssl rand -hex 32), each id once"
            raise InvalidSetting(_KEYS, "***", expected)
        keys[key_id] = key
    return keys


def codec_of(settings: Settings) -> Any:
    """Return the codec of the settings, None without one; raise InvalidSetting."""
    if not settings.payload_codec:
        return None
    return _codec(settings.payload_codec, settings.payload_keys)


@functools.lru_cache(maxsize=8)
def _codec(name: str, keys: str) -> Any:
    expected = "a class with encode and decode, as module:Class"
    module, _, attribute = name.partition(":")
    try:
        made = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as problem:
        raise InvalidSetting(_VARIABLE, name, f"{expected}: {problem}") from problem
    settings = Settings(payload_codec=name, payload_keys=keys)
    of_settings = getattr(made, "from_settings", None)
    codec = of_settings(settings) if of_settings is not None else made()
    if not callable(getattr(codec, "encode", None)) or not callable(getattr(codec, "decode", None)):
        raise InvalidSetting(_VARIABLE, name, expected)
    return codec
