"""A profile for whoever only wants to know which lines the unit tests reach."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("few", deadline=None, max_examples=10, derandomize=True, database=None)
