"""Calls, before anybody asks what they want: sockets, connections, limits, and how errors are told.

listen.py       sockets and TLS
connection.py   a connection, its limits and deadlines; upgrade.py, one that has become a
  WebSocket
exposure.py     where the server may listen, and which web pages may call it
call.py         what a handler is given and what it returns; preferences.py, what a client
  prefers
faults.py       errors as status and JSON
waiting.py      a call that waits, and whose client goes
"""
