"""Routes: what is appended to one topic is appended to another one, too.

    store.route("orders", "payments", where='header.kind == "paid" and json.amount > 100')

Appending to the source knows nothing of it. A route reads its source as a group of readers (groups
are the room below), so that its place survives crashes, has one owner among all processes, and
tells how far behind it is. What matches goes to the destination by whole batches, with key, tag,
node, headers and timestamp as they are. The destination is synced, and only then the batch is
acked: what the cursor has passed is there. What comes twice after a crash is what lay between
the two.

*Exactly once* closes that gap with a mark on the last record of each batch (format/routes.py). It
says up to which offset of the source all is there, and is as durable and as whole as the batch. Who
takes over a shard first becomes the writer of the destination, so that nobody else can append, then
looks for the last mark, and leaves out what it covers.

A route that cannot go on stands still with a reason, tries again, and never holds up its source.

    forward.py    columns in, columns out: which go where, with which headers
    runner.py     one route at work: poll, filter, append, sync, ack
    registry.py   the routes of one store: the file, the runners, the thread
    route.py      what users hold, and how one is defined, moved and deleted
    status.py     all routes, for whoever only looks
"""
