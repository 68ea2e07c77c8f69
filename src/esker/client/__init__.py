"""The client: a store on a server, with the verbs and the exceptions of one in a directory.

    with esker.open("http://127.0.0.1:4117", key="...") as store:
        store["orders"].append(b"hello")
        for record in store["orders"].read("earliest"): ...

It stands on the standard library's http.client. A store holds a pool of connections, so that its
threads do not wait for each other; records travel as Arrow, whole batches at a time. An error of
the server comes back as the exception that a directory would have raised, rebuilt by its code.

What a call that was not answered has done cannot be known. So a call is sent again only if it was
not sent whole, or if doing it twice is doing it once: reads, and appends with an idempotency key.
With `retries=N` every append carries such a key. Otherwise `Unavailable` says that it may have been
done.

    address.py    what a URL names, and what can be set
    pool.py       connections: taken, given back, found dead, tried again
    faults.py     errors by their codes
    bodies.py     records as bodies, and bodies as batches
    texts.py      positions and records in the words of JSON
    store.py      a store
    topic.py      a topic: append, read, delete
    dividing.py   a shard in pieces, for readers that share it
    tail.py       following: what came, and waiting for more
    producer.py   batches that are numbered
    group.py      readers that share a topic
    queue.py      jobs under leases
    route.py      from topic to topic
    stage.py      batches that are made here and attached there
"""
