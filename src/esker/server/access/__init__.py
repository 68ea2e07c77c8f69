"""Who asks, and what they may do.

keys.py      keys, scopes, prefixes of topics; keyfile.py, where keys are kept
gate.py      who comes in, how many at once, and how they are put out
tickets.py   for those who cannot send a key
audit.py     who was refused, and who changed what
"""
