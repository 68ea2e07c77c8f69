"""The log: topics, shards, commit, recovery, reading.

    shard.py       one shard as its writer sees it: buffer, active log, sealed segments, offsets
    committer.py   group commit: one round, one sync, many acks
    recovery.py    one function, read top to bottom: a directory into a state to go on from
    survey.py      the logs of a shard after a crash: what is to become of each
    replay.py      journals of dead processes, written into the logs they speak of
    recatalog.py   names and options of topics, found again in their segments
    findings.py    what recovery may find, in words
    quarantine.py  the place for what cannot be used and must not be lost
    follower.py    one shard as a reader in another process sees it
    reader.py      batches from a position on; slices; positions into offsets
    topic.py       the object users hold: append, read, follow
    store.py       open, close, the registry of topics
    background.py  the only threads: linger, ticks, sealing
    verify.py      checks a store without opening it; repairs one and keeps the evidence

The core (shard, committer's round, recovery, reader) is synchronous: it takes files and clock as
arguments, starts no thread and can be driven step by step. Threads are in background.py and in
whoever calls; locks say beside their definition what they guard.
"""
