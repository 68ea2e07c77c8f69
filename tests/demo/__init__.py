"""The demo: what it shows, how it counts, and that nobody outlives it."""
