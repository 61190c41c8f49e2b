"""Runs in the browser: a Workflows page inside stock Flower.

`flower` puts the page in, `pages` answers requests, `reading` asks the store, `looks` says
how things look. Importing this package loads neither Flower nor tornado; `install` does.
"""

from flowengine.web.flower import install

__all__ = ["install"]
