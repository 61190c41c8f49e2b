"""Integrations with web frameworks, each imported only by those who use it."""
