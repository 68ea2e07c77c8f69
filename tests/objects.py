"""An S3 server on this machine, as moto has one, for tests of what lies in object stores."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

from pyarrow import fs

KEY, SECRET = "AKIAESKER", "not-a-secret"


class Server(NamedTuple):
    """A server with an empty bucket."""

    endpoint: str
    system: Any  # of pyarrow, to look at it from outside

    def url(self, path: str, *, secrets: bool = True) -> str:
        """A URL that leads to a path in it, with all that it takes to open it."""
        who = f"{KEY}:{SECRET}@" if secrets else ""
        return (
            f"s3://{who}{path}?scheme=http&region=us-east-1"
            f"&endpoint_override={quote(self.endpoint, safe='')}"
        )

    def keys(self, path: str) -> list[str]:
        """What lies below a path."""
        found = self.system.get_file_info(fs.FileSelector(path, recursive=True))
        return sorted(each.path for each in found if each.is_file)


@contextmanager
def serving(bucket: str = "bucket") -> Iterator[Server]:
    """A server on a free port of the loopback interface, until the block ends."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it tells of every request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"{host}:{port}"
        system = fs.S3FileSystem(
            access_key=KEY, secret_key=SECRET, region="us-east-1", scheme="http",
            endpoint_override=endpoint, allow_bucket_creation=True,
        )  # fmt: skip
        system.create_dir(bucket)
        yield Server(endpoint, system)
    finally:
        server.stop()
