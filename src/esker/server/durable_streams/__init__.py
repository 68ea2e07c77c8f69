"""The Durable Streams protocol, at `/ds/{topic}`.

append.py    making, appending, closing
read.py      reading, long polls, server-sent events
state.py     how a stream stands, which its log says
"""
