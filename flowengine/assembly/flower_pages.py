"""Pages that packages offer for Flower."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

#: The group of entry points: functions without arguments that add pages to Flower.
FLOWER_PAGES = "flowengine.flower_pages"


def show_in_flower() -> None:
    """Install the pages that packages offer for Flower, if this process becomes a Flower.

    Flower reads its list of pages right after it has imported the app. `celery` loads Flower for
    each of its commands; only the command line shows which one runs. The pages of flowengine are
    an entry point like any other: this layer does not import them, and workers do not load them.
    """
    if "flower" in sys.argv[1:]:
        for page in entry_points(group=FLOWER_PAGES):
            page.load()()
