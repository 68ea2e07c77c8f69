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
now (hub.py).

    table.py      the routes; wire.py, their bodies; handlers.py, who answers them
    app.py        a call, from top to bottom
    call.py       what a handler is given and what it returns; preferences.py, what a client
      prefers; waiting.py, for something on behalf of one
    faults.py     errors as status and JSON
    openapi.py    the table, for other programs; described.py, what the table does not say
    codec.py      records as JSON, NDJSON and Arrow; message.py, Arrow in pieces; arrow.py, Arrow
      from strangers; depth.py, how deeply JSON may be nested
    settings.py   what can be set, and from where it came
    exposure.py   where it may listen, and which web pages may call it
    keys.py       who asks, and what they may do; keyfile.py, where keys are kept
    gate.py       who comes in, how many at once, and how they are put out
    tickets.py    for those who cannot send a key; access.py gives them out
    audit.py      who was refused, and who changed what; logs.py, all else that is said
    listen.py     sockets and TLS; protocol.py, a connection, its limits and deadlines;
      upgraded.py, one that has become a WebSocket
    run.py        start, reload and stop
    topics.py, records.py, places.py, probes.py    the handlers
    groups.py, queues.py, work.py, routes.py, stages.py    those of the rooms above the log;
      wire_rooms.py, their bodies; rooms.py, members.py, desk.py, hands.py, what they keep between
      calls
    appending.py  one append, by whichever door it comes in
    producers.py  batches that are numbered by who sends them
    interop.py    CloudEvents
    otlp.py       logs of OpenTelemetry
    durable.py    Durable Streams: making and appending; durable_read.py, reading;
      durable_state.py, how a stream stands, which its log says
    watch.py, socket.py                 streams: server-sent events, WebSocket; wire_live.py, what
      is said over them
    hub.py        delivery: one feed for all who watch a shard; feed.py, what it does on disk;
      beats.py, what it looks at now and then; missing.py, who waits for a topic that is not there
    stream.py     one client of a stream, and how much may wait for it
    frames.py     records as events and messages; cursor.py, places in one word
    metrics.py    how it goes, for Prometheus; gauges.py, how the store goes; latency.py, how long a
      record takes, by stage
    page.py       the console for browsers; looks.py, what it shows of a store as a whole;
      export.py, a topic as a file; sheet.py, records as CSV; leased.py, jobs that others hold;
      wire_looks.py, their bodies
    sifting.py    which records of a batch are wanted
"""
