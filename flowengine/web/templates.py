"""Flower's templates plus our own, with one more entry in the navigation bar."""

from __future__ import annotations

import re
from pathlib import Path

from tornado.template import Loader, Template

_TEMPLATES = Path(__file__).parent / "templates"

#: The entry of the Broker page, the last one of Flower.
_BROKER_ENTRY = re.compile(
    r"""[ ]*<li\ class="nav-item">\s*<a\ class="nav-link(?P<classes>[^"]*)"
        (?:(?!</li>).)*?reverse_url\('broker'\)(?:(?!</li>).)*</li>\n?""",
    re.VERBOSE | re.DOTALL,
)


class Templates(Loader):
    """Loads our templates by name, all others from Flower's directory."""

    def _create_template(self, name: str) -> Template:
        if (_TEMPLATES / name).is_file():
            return Template((_TEMPLATES / name).read_text("utf-8"), name=name, loader=self)
        if name == "navbar.html":
            text = Path(self.root, name).read_text("utf-8")
            return Template(_with_workflows_entry(text), name=name, loader=self)
        return super()._create_template(name)


def _with_workflows_entry(navbar: str) -> str:
    """Return the navigation bar with our entry, a copy of the Broker entry."""
    broker = _BROKER_ENTRY.search(navbar)
    if broker is None:
        raise LookupError("its navigation bar has no entry for the Broker page")
    entry = broker[0].replace("'broker'", "'workflows'").replace(">Broker<", ">Workflows<")
    return navbar[: broker.end()] + entry + navbar[broker.end() :]
