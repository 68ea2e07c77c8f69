"""The log: topics, shards, commit, recovery, reading.

    store.py       open, close, the registry of topics
    identity.py    which directory a store is, and that it is one
    topic.py       the object users hold; it is handle.py, writing.py and reading.py together
    intake.py      what users hand in, checked and made into what is stored
    buffer.py      records that have an offset and are not yet written
    shard.py       one shard as its writer sees it: buffer, active log, sealed segments, offsets
    page.py        what it has promised: the ceiling, where it begins, which deletions count
    sealing.py     its files, one after the other: logs are made, rolled, sealed
    refusals.py    what it says when it takes no more records
    layout.py      where a shard's files are, and whether they were left in order
    tally.py       the counters page
    once.py        batches that happen once: keys and producers; known.py: which are known
    processes.py   many processes: slots, which shard to append to, handing over
    committer.py   group commit: one round, one sync, many acks
    background.py  the only threads: linger, ticks, sealing, moving
    maintenance.py what they do, have to do and have done, for whoever asks
    follower.py    one shard as a reader in another process sees it
    reader.py      batches from an offset on; positions into offsets
    ranges.py      a shard's offsets, divided for readers that share the work
    sieve.py       what a reader leaves out, by whole batches
    epochs.py      places in a topic that is another one by now
    waited.py      threads that wait for records of a shard
    batch.py       a batch as users get it; slices.py, tail.py: parts of a topic, and its end
    notebook.py    what a notebook shows of all these
    recovery.py    one function, read top to bottom: a directory into a state to go on from
    survey.py      the logs of a shard after a crash: what is to become of each
    replay.py      journals of dead processes, written into the logs they speak of
    recatalog.py   names and options of topics, found again in their segments
    attach.py      batches made elsewhere: staged, committed once, attached to their shards
    delivery.py    such a batch as a whole: committed, attached here, waited for elsewhere
    verbs.py       groups, queues and routes, which are built above: how they are called, who does
                   the work; guests.py: what they have open here
    floor.py       where a shard begins, and what became of what was before
    altering.py    changing the options of a topic
    retention.py   caps and ages: what is evicted, and what is refused
    consumed.py    what groups have to do with that: what all have read, and what one has not
    budget.py      what is evicted when all topics together hold too much
    removal.py     what is deleted on request: topics, and records before an offset
    erasing.py     single records that are deleted: by tag
    rewriting.py   sealed segments without the bytes of deleted records
    tiering.py     sealed segments that are moved to a cold store, and brought back
    mover.py       which of them are moved by themselves, and when
    ahead.py       the next of them, fetched while one is read
    archiving.py   sealed segments as Parquet files; archived.py: reading them back
    progress.py    how far a long piece of work is
    findings.py    what recovery may find, in words
    quarantine.py  the place for what cannot be used and must not be lost

The core (shard, committer's round, recovery, reader) is synchronous: it takes files and clock as
arguments, starts no thread and can be driven step by step. Threads are in background.py and in
whoever calls; locks say beside their definition what they guard.
"""
