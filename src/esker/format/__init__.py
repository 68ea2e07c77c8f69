"""Bytes to values and back, and nothing else.

This room does no I/O, holds no lock and asks no clock: given bytes it says what they are, given
values it makes the bytes. What to do about a damaged frame is decided further up.

    frame.py      the container: a 64-byte header and a body, and how a scan ends
    columns.py    the body of a data frame: Arrow buffers, 8-byte aligned
    segment.py    the header of a segment, the footer and trailer of a sealed one
    place.py      what stays of a segment that was moved to a cold store
    journal.py    redo entries
    state.py      the two-slot state page of a shard
    marks.py      deleted records, as bitmaps
    tags.py       which rows of a segment carry which tag
    checksum.py   XXH3-64, seeded
    catalog.py    the store's identity and its list of topics
    commit.py     which staged segments make up a batch
    archive.py    which Parquet files make up a topic's archive
    offsets.py    how far the groups of a shard have come; members.py: who takes part in them
    counters.py   the 1 KiB counters page, every field by name
    names.py      every file name, built and parsed

The layout is drawn in docs/format.md, and frozen by the files under tests/golden/v1.
"""
