"""Flower's templates, with ours beside them and one more entry in its navigation bar."""

from __future__ import annotations

import re
from pathlib import Path

from tornado.template import Loader, Template

_OURS = Path(__file__).parent / "templates"

#: The entry of the Broker page, the last of Flower's own.
_LAST_ENTRY = re.compile(
    r"""[ ]*<li\ class="nav-item">\s*<a\ class="nav-link(?P<classes>[^"]*)"
        (?:(?!</li>).)*?reverse_url\('broker'\)(?:(?!</li>).)*</li>\n?""",
    re.VERBOSE | re.DOTALL,
)


class Templates(Loader):
    """Loads a template of ours by its name, any other from Flower's own directory."""

    def _create_template(self, name: str) -> Template:
        if (_OURS / name).is_file():
            return Template((_OURS / name).read_text("utf-8"), name=name, loader=self)
        if name == "navbar.html":
            text = Path(self.root, name).read_text("utf-8")
            return Template(_with_entry(text), name=name, loader=self)
        return super()._create_template(name)


def _with_entry(navbar: str) -> str:
    """Return the navigation bar with our entry, written the way its neighbour is."""
    found = _LAST_ENTRY.search(navbar)
    if found is None:
        raise LookupError("its navigation bar has no entry for the Broker page to stand beside")
    entry = found[0].replace("'broker'", "'workflows'").replace(">Broker<", ">Workflows<")
    return navbar[: found.end()] + entry + navbar[found.end() :]
