"""The console: its files, how they are served, and what people do in it, in a real browser."""
