"""The server: the same store for other languages and machines.

    esker serve data                      # http://127.0.0.1:4117
    curl -d hello -H 'Content-Type: application/octet-stream' \
      http://127.0.0.1:4117/v1/topics/greetings/records
    curl http://127.0.0.1:4117/v1/topics/greetings/records

It is an ASGI application of its own on uvicorn. Everything that can be asked of it stands in one
table (table.py): method and path, the scope that a key needs, where names of topics occur, what
the body is and what comes back. Routing, authorisation, the OpenAPI document and the tests that try
every route with every kind of key are made from it; a route that is not in the table is not there.

A call goes through one function from top to bottom (app.py): who is asking, may they, is the body
as it should be, do it, say it. What can be refused is refused before a body is read. What may touch
a disk runs in the pool of threads of the store's asyncio twin, and the files of keys and of the
audit log in one of the loop's own. Two things are done on the loop, for they find what they need in
memory: a buffered append that has room, and reading the little that a few watched shards got just
now (live/hub.py).

    app.py        a call, from top to bottom
    table.py      the routes; handlers.py, who answers them; openapi.py, the table for other
      programs, and described.py, what it does not say
    http/         sockets, connections and their limits, and how errors are told
    access/       who asks, what they may do, and the audit log
    bodies/       what goes over the wire: records and everything else, as bytes
    settings.py   what can be set, and from where it came
    run.py        start, reload and stop; logs.py, what is said meanwhile

    topics.py, records.py, ranges.py    topics and their records; appending.py, one append, by
      whichever door it comes in; producers.py, batches that are numbered by who sends them;
      staging.py, batches that are attached later
    groups.py     groups of readers, and members.py, who sits where; jobs/, queues;
      routes.py, routes; seals.py, what the server vouches for, and what it keeps between calls
    live/         streams: server-sent events, WebSocket, and delivery to all who watch
    durable_streams/    the Durable Streams protocol
    otlp.py       logs of OpenTelemetry
    page.py       the console for browsers; overview.py, what it shows of a store as a whole;
      export.py, a topic as a file
    probes.py     is it well; metrics.py, how it goes, for Prometheus; gauges.py, how the store goes
"""
