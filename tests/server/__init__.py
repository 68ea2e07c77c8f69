"""The server, over real sockets of this machine."""
