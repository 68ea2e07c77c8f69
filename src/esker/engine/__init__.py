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
arguments, starts no thread and can be driven step by step. Threads are those of the caller and
those of background.py, which start with the first write, or the first group: esker-commit
(lingering buffers, background syncs, rolling by age, offsets set aside) and esker-seal; with a cold
store esker-tier, which moves segments, and one that fetches the next for who reads on (ahead.py).

Locks, outermost first. Nobody takes one that stands above one he holds.

    Slots._delivering                    who hands a batch over to another process
    Background._heavy; _stepping ->      who seals, evicts or removes; who ticks;
      _attaching                         who attaches batches
    opening._opening; Lane._lock ->      queues: who makes or opens one; the leases of a shard, and
      Lane._syncing                      who syncs or exchanges their log. Outside of all below
    Topic._lock -> Store._lock           the topic's shards; the registry of topics and the catalog
    Table.lock                           which batches of a shard are known by a key
    Committer._mutex                     who waits for the next round, and whether one is led; never
                                         held while a round works
    Shard.tiering -> Shard._sealing      who moves, brings back or sweeps: the only one that is held
                                         while a cold store is asked
    Shard._sealing -> Shard.lock         who seals or replaces a segment; one shard's log, segments,
                                         buffer and three ends
    Committer._journal_lock ->           the journals
      Shard.lock
    Shard.lock -> Page.lock              the state page and the ceiling
    Follower._lock -> Maps._lock         a reader's view; the mapped files
    Group._lock -> guard of a page ->    a member's shards; who makes, takes over or forgets a
      offsets.lock, members.lock         group, between threads and between processes. Never held
                                         while a shard's lock is taken for writing, nor the other
                                         way round
    Slots._lock                          which slot this handle has, and who else has one
    Shard._waiters_lock, Gauge._lock     followers to be woken; bytes not yet durable

`Shard.lock` is held while a frame is encoded and written, so that a failed write can be undone
before a later offset is given out; a commit syncs without it. Readers take no lock of the writer.
"""
