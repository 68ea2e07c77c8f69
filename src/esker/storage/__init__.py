"""Files. Knows sync and rename, knows nothing of topics' names or of clients.

    files.py      the only door to the operating system
    objects.py    the same door onto an object store, for archives
    memory.py     the same door onto memory, for ":memory:" and class ephemeral
    segment.py    what both kinds of segment share: packing frames, the directory
    log.py        the segment being written
    sealed.py     the immutable one, mapped
    staged.py     the segment made outside of the log, and how it becomes a part of it
    hole.py       where a repair has put on record that records are lost
    scan.py       walks frames and says how the walk ended: clean, torn, corrupt
    merge.py      many small frames into few large ones
    given.py      a file that is no part of a store, to be read by pyarrow and others
    pieces.py     a new file, written in pieces that the kernel can keep in large pages
    blank.py      a sealed segment once more, without what its deleted records held
    maps.py       mapped sealed files, least recently used let go first; fetched ones, too
    cold.py       the door to cold stores: directories, and object stores by way of pyarrow
    journal.py    the redo journals
    catalog.py    the identity file, the list of topics, replaced atomically
    archive.py    Parquet files beside the log, and the manifest that says which of them count
    state.py      a shard's two-slot state page
    marks.py      which records of a shard were deleted one by one, and the file that says so
    tags.py       the index of a sealed segment's tags, made when it is first needed
    shared.py     a mapped page that processes share, and its lock
    offsets.py    a shard's page of group cursors; members.py: a topic's of group members
    counters.py   a shard's mapped counters page

No thread is started here and no time is read here but through what is passed in.
"""
