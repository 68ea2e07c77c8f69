"""Queues over the wire.

queues.py     the routes of queues; stream.py, the one that hands out jobs as events
claiming.py   claims of all clients, served together; in_hand.py, the jobs that each key has
leases.py     jobs that others hold, for who looks after them
"""
