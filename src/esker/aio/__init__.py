"""The asyncio twin: the same verbs, and a loop that never waits for a disk.

    async with await esker.aopen("data") as store:       # or: async with esker.aopen("data")
        offset = await store["orders"].append(b"…", wait=True)
        async for record in store["orders"].read("earliest"): …

There is one engine. This is a thin shell over it: whatever may touch a file runs in a small pool
of threads that belongs to the store. A buffered append that finds room needs no file, so it is
done at once. Appends that wait are collected: all that the loop's tasks submit while one commit
is under way go into the next one together, so a thousand tasks that wait for durability cost one
round and not a thousand threads.

Cancelling a task that waits does not take its record back: it is in a round or will be.

    store.py    a store and its topics; how waiting appends are collected
    groups.py   readers that share a topic
    queues.py   jobs under leases
    routes.py   from topic to topic
"""

from esker.aio.groups import AsyncGroup
from esker.aio.queues import AsyncJob, AsyncQueue
from esker.aio.routes import AsyncRoute
from esker.aio.store import AsyncBatch, AsyncProducer, AsyncStore, AsyncTopic, aopen

__all__ = [
    "AsyncBatch",
    "AsyncGroup",
    "AsyncJob",
    "AsyncProducer",
    "AsyncQueue",
    "AsyncRoute",
    "AsyncStore",
    "AsyncTopic",
    "aopen",
]
