"""Sections: what is asked of flowengine beyond the race. Each is a module with a `run`."""
