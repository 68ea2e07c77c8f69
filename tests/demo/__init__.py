"""The demo: it shows what it says, its checker can tell when it does not, and nobody outlives it."""
