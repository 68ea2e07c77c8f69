"""Streams: records go out as they come, over server-sent events and WebSocket.

watch.py      server-sent events; websocket.py, the other way round as well
hub.py        delivery: one feed for all who watch a shard; feed.py, what it does on disk
missing.py    who waits for a topic that is not there
stream.py     one client, and how much may wait for it
frames.py     records as events and messages; cursor.py, places in one word
beats.py      what is looked at now and then
latency.py    what each stage of a delivery takes, and may take
"""
