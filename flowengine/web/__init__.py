"""Runs in the browser: a Workflows page inside stock Flower.

`flower` installs the page, `pages` handles requests, `access` decides whose runs a request sees,
`async_queries` queries the store, `styles` and `metrics` format values. Importing this package
loads neither Flower nor tornado; `install` does.
"""

from flowengine.web.flower import install

__all__ = ["install"]
