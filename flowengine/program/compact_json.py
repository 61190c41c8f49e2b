"""JSON without spaces, written by an encoder that is built once.

`json.JSONEncoder.encode` builds its encoder in C for every value, which takes longer than writing
a small one; the engine writes about ten for each step.
"""

from __future__ import annotations

import json
import json.encoder
from collections.abc import Callable, Iterable
from typing import Any

Encode = Callable[[Any], str]


def encoder(*, allow_nan: bool) -> Encode:
    """Return a function that writes a value as JSON in ASCII; its errors are those of `json`."""
    plain = json.JSONEncoder(separators=(",", ":"), allow_nan=allow_nan)
    make = getattr(json.encoder, "c_make_encoder", None)  # absent on other interpreters
    if make is None:
        return plain.encode
    text = json.encoder.encode_basestring_ascii
    # No markers: cycles end in a RecursionError, and the slow encoder names them.
    write: Callable[[Any, int], Iterable[str]] = make(
        None, plain.default, text, None, ":", ",", False, False, allow_nan
    )

    def encode(value: Any) -> str:
        try:
            return "".join(write(value, 0))
        except Exception:
            return plain.encode(value)

    return encode
