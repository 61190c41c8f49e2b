"""Sections: measurements of flowengine alone. Each is a module with a `run`."""
