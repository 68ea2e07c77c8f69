"""Looking after a store: checking one without opening it, repairing one and keeping the evidence.

    verify.py       the whole store; `esker.verify(path)`
    inspection.py   one shard
    examine.py      one segment file
    stubs.py        segments in a cold store, and stubs made anew
    deletions.py    the file of deletions of a shard, and how it is mended
    leases.py       the settings and leases of a queue
    dealt.py        a check whose segments are examined elsewhere, by many at once
    report.py       what is said: problems, their severity, what to do
    repair.py       sets right what recovery may not touch; `esker.repair(path)`
    sequence.py     mends one shard
    mend.py         rewrites segments, and keeps what they were
    backup.py       a copy of a store, made beside its writer; `esker.backup`, `esker.restore`

Checking shares the layouts of `format` with the engine and nothing else of how it reads, so that
a mistake there is not repeated here.
"""
