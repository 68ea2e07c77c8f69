"""Groups: readers that share a topic, and remember how far they have come.

    group = topic.group("billing", start="earliest")
    for batch in group.poll(wait=1.0):
        handle(batch)
        batch.ack()

A group has one *cursor* in every shard: all before it is done with. It moves only when somebody
acks, never past what is durable, and never back unless `seek` says so. Whatever lies behind it is
delivered again, to whoever reads next: after a crash, after a restart, after a handover. That is
*at least once*, and it is the whole promise; docs/groups.md says what exactly once needs besides.

Cursors lie in a mapped page beside each shard (format/offsets.py). An ack is one store into it: it
costs no lock and no system call, every process sees it at once, and it survives the death of the
process. It survives the death of the machine once the page is synced, which the background does,
and `sync`, `ack(wait=True)` and `close`. Before that the cursor may be older after a power cut, and
records come twice; it is never newer. A new group is synced before anybody relies on it: or one
that starts at "latest" would start anew, and leave out what came between.

There is no coordinator. The members of a group, in any process of the machine, find each other in a
page of the topic (format/members.py), each with a kernel lock that tells whether it lives, and all
compute from it the same division of the shards (assignment.py). A shard changes hands when its
owner lets go of it: at its next poll, as soon as what it has read is acked. Or when it is dead,
which the kernel tells at once. Or when it was not seen for as long as its session, by the clock
that nobody can set.

Every change of hands begins a *generation*, and only who knows that it is the current one moves the
cursor. Somebody who was stopped, replaced, and wakes up again does not know; what it stores lands
where nobody reads, and it is told: `Fenced`. So of two owners at most one ever counts.

    Group.poll ─► Membership.wanted     who is there (members page), so which shards are ours
               ─► Held: begin a term    under offsets.lock, once: the generation that only we know
               ─► read_batches ─► GroupBatch
    GroupBatch.ack ─► Held.ack          one store into the cell of our generation; is it still ours?
    Groups.tend, sync, close            what became durable meanwhile is stored, the page is synced

A *term* is one ownership of a cursor; its number is the generation. Retention reads the cursors in
the page (engine/consumed.py).

    assignment.py   which shards are whose: pure
    acks.py         acks in any order, and how far they leave no hole: pure
    registry.py     what one store keeps open for its groups; ticks, syncs, closes
    membership.py   coming, going, and who of the others lives
    held.py         a shard that a member owns: the one place from which a cursor is moved
    batch.py        a batch with an `ack`
    group.py        what users hold: poll, ack, seek, pause
    moves.py        seek: where a group would be put, and putting it there
    process.py      the loop around it: handlers, retries, clean stop
    lag.py          how far behind, in records, in seconds, and until when
    describe.py     all groups of a topic, for whoever only looks; forgetting one
    pattern.py      many topics as one, also those to come
"""
