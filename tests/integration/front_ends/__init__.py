"""Workflows that are drawn as descriptions, and written down in several languages."""
