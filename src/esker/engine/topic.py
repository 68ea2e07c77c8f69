"""The object users hold: append, read, follow."""

from __future__ import annotations

from esker.engine.reading import Reading
from esker.engine.writing import BatchWriter, Writing


class Topic(Writing, Reading):
    """A named log. Get one with `store["name"]` or `store.create("name", ...)`."""


__all__ = ["BatchWriter", "Topic"]
