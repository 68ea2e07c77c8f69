"""A connection that has become a WebSocket: who does not take what he is sent is cut off.

uvicorn speaks the protocol. It waits for its client: a farewell is written when there is room for
it, pings are answered whether the answers are read or not, and a connection that is closed stays
until all that was written has left. A client that reads nothing would be waited for without an end,
and hold its place among the streams and connections that a server has. So here:

    a farewell for which there is no room      the connection is aborted
    a ping, while answers are not taken        is not answered
    a connection that is closed                has a second more to take what was written
    a message                                  comes in so many frames at most: 1009
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    from websockets.frames import Frame

LINGERS: Final = 1.0  # seconds
FRAMES_MAX: Final = 16_384  # of one message; what is in them is bounded by `body_bytes`
_TOO_BIG: Final = 1009


class Upgraded(WebSocketsSansIOProtocol):
    """One WebSocket."""

    _frames = 0
    _closed_at = 0.0

    async def send(self, message: Any) -> None:
        if message["type"] == "websocket.close" and not self.writable.is_set():
            self.transport.abort()  # it takes nothing, not even that it is over
            return
        await super().send(message)

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()  # the answer, which nobody is to have

    def handle_text(self, event: Frame) -> None:
        self._frames = 0
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        self._frames = 0
        super().handle_bytes(event)

    def handle_cont(self, event: Frame) -> None:
        self._frames += 1
        if self._frames < FRAMES_MAX:
            super().handle_cont(event)
        elif self._frames == FRAMES_MAX and not self.close_sent:  # the rest is passed over
            self.conn.send_close(_TOO_BIG, "a message in too many frames")
            self.handle_parser_exception()

    def look(self, now: float) -> None:
        """See whether it is closed, and still there; a few times a second."""
        if not self.transport.is_closing():
            return
        self._closed_at = self._closed_at or now
        if now - self._closed_at > LINGERS:
            self.transport.abort()
