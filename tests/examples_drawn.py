"""How Hypothesis draws its examples here: the same each time.

So a red run is somebody's change. `make test-chaos` draws others, and more.
"""

from __future__ import annotations

import os

from hypothesis import settings

AT_RANDOM = "EXAMPLES_AT_RANDOM" in os.environ

settings.register_profile(
    "flowengine",
    deadline=None,
    derandomize=not AT_RANDOM,
    max_examples=100 if AT_RANDOM else 30,
    print_blob=True,
    database=None,
)
settings.load_profile("flowengine")
