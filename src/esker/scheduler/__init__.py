"""Who is served next, and what is done when there is too much to do.

A topic with records that somebody waits for is *dirty*. It stands in the ready set at most once,
whatever is appended to it, and is drained when its turn comes.

    priority.py    how important a topic is, and the bands that follow from it
    ready.py       the ready set: bands that are served by weight, oldest first, and ageing
    governor.py    how hard pressed the server is, and the ladder that it climbs

Nothing here sleeps, waits or looks at the time by itself: a clock is given, and whoever uses this
asks `next` and tells `served`. So every bound that is promised is tested without waiting for it.

The cardinal rule: pressure costs latency, never correctness. What is put off stays where it is, in
the log, and is there for everybody who reads; what is refused is refused before it is taken.
"""
