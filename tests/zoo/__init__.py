"""Bugs on purpose, and that the tests notice them."""
