"""``Secret``: text that is stored encrypted and never shown."""

from __future__ import annotations

import json

import pydantic

from flowengine.secret_keys import encrypted

#: The types whose values are secrets. `pydantic.Secret` is generic: Secret[int].
SECRET_TYPES = (pydantic.SecretStr, pydantic.SecretBytes, pydantic.Secret)


class Secret(pydantic.SecretStr):
    """A text that is stored encrypted, under the keys of FLOWENGINE_SECRET_KEYS, and never shown.

    ``secret.get_secret_value()`` is the text. pydantic's SecretStr, SecretBytes and Secret[…] are
    stored the same way.
    """

    def encrypted(self) -> dict[str, str]:
        """Return the stored form, for JSON from outside: a message, or an answer for a step."""
        return encrypted(json.dumps(self.get_secret_value()).encode())
