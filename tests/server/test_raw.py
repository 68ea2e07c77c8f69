"""Bytes that are no request, or nearly one: each is refused or hung up on, and nobody else notices.

A corpus of raw requests. For each of them: an answer of 4xx in the one shape of errors, or a clean
close; never a 5xx, never silence, and a good request on another connection is answered at once.
"""

from __future__ import annotations

import contextlib
import socket
import time
from urllib.parse import quote

import pytest

from esker.server.run import Server
from tests.server.conftest import Client
from tests.server.raw import HOST, alive, answers, connected, judged, listen, told
from tests.suites import Tallies

POST = b"POST /v1/topics/t/records HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
GOOD = b'{"records":[{"value":"x"}]}'
PIECES = b"%x\r\n%b\r\n0\r\n\r\n" % (len(GOOD), GOOD)  # what is refused, is so for its shape alone
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


def get(path: bytes = b"/healthz", headers: bytes = b"", host: bytes = HOST) -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\n" + host + headers + b"\r\n"


def with_length(*lengths: bytes, body: bytes = GOOD, more: bytes = b"") -> bytes:
    return (
        POST
        + b"".join(b"Content-Length: " + each + b"\r\n" for each in lengths)
        + more
        + (b"\r\n" + body)
    )


def lines() -> list[bytes]:
    """The first line."""
    return [
        b"\x00", b"\xff" * 100, b"\r\n" * 50_000, b" " * 1_000, b"GET", b"GET /healthz\r\n\r\n",
        b"GET /healthz HTTP\r\n\r\n", b"GET /healthz HTTP/1.1", b"GET /healthz HTTP/1.1\n\n",
        b"GET /healthz HTTP/0.9\r\n\r\n", b"GET /healthz HTTP/1.2\r\n" + HOST + b"\r\n",
        b"GET /healthz HTTP/2.0\r\n" + HOST + b"\r\n", b"GET /healthz HTTP/9.9\r\n\r\n",
        b"GET /healthz HTTP/11.1\r\n\r\n", b"GET /healthz http/1.1\r\n" + HOST + b"\r\n",
        b"GET /healthz HTTPS/1.1\r\n\r\n", b"GET /healthz ICE/1.0\r\n\r\n",
        b"GET\t/healthz\tHTTP/1.1\r\n" + HOST + b"\r\n",
        b" GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /healthz HTTP/1.1 \r\n" + HOST + b"\r\n",
        b"GET /healthz HTTP/1.1 x\r\n" + HOST + b"\r\n",
        b"get /healthz HTTP/1.1\r\n" + HOST + b"\r\n", b"G\x00T /healthz HTTP/1.1\r\n\r\n",
        b"GE T /healthz HTTP/1.1\r\n\r\n", b"FROB /healthz HTTP/1.1\r\n" + HOST + b"\r\n",
        b"A" * 5_000 + b" /healthz HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 40,  # TLS
        b"SSH-2.0-OpenSSH_9.9\r\n", b"EHLO localhost\r\n", b"*1\r\n$4\r\nPING\r\n",
        b"USER root\r\n", b"\x00\x00\x00\x0aesker", b"CONNECT localhost:22 HTTP/1.1\r\n\r\n",
        b"CONNECT localhost:22 HTTP/1.1\r\n" + HOST + b"\r\n", b"OPTIONS * HTTP/1.1\r\n" + HOST
        + b"\r\n", b"GET * HTTP/1.1\r\n" + HOST + b"\r\n", b"TRACE / HTTP/1.1\r\n" + HOST + b"\r\n",
        b"DEBUG / HTTP/1.1\r\n" + HOST + b"\r\n", b"PROPFIND / HTTP/1.1\r\n" + HOST + b"\r\n",
    ]  # fmt: skip


def targets() -> list[bytes]:
    """What is asked for."""
    hidden = (
        b"/..", b"/../", b"/../../etc/passwd", b"/%2e%2e/%2e%2e/etc/passwd", b"/./healthz/x",
        b"//healthz", b"/healthz/", b"/healthz//", b"/%00", b"/healthz%00", b"/%", b"/%2", b"/%zz",
        b"/%c0%ae%c0%ae/", b"/%e0%80%ae/", b"/%ff%fe", b"/%ed%a0%80", b"/%f8%88%80%80%80",
        b"/%252e%252e/", b"/\\..\\..", b"/healthz;x=1", b"/healthz.json", b"/HEALTHZ", b"/v1",
        b"/v1/", b"/v1/topics/", b"/v1/topics//records", b"/v1/topics/../healthz",
        b"/v1/topics/%2e%2e", b"/v1/topics/%2Fetc%2Fpasswd", b"/v1/topics/a%2Fb", b"/v1/topics/%00",
        b"/v1/topics/a%0d%0aSet-Cookie:x", b"/v1/topics/a%0aX-Evil:1", b"/v1/topics/%20",
        b"/v1/topics/-a", b"/v1/topics/.a", b"/v1/topics/" + b"a" * 256, b"/v1/topics/a%E2%80%A8",
        b"/v1/topics/%D0%B0", b"/v1/topics/a%CC%88", b"/v1/topics/a?x=1", b"/v1/topics?limit=0",
        b"/v1/topics?limit=-1", b"/v1/topics?limit=99999999999999999999",
        b"/v1/topics?limit=%00", b"/v1/topics?limit=1&limit=2", b"/v1/topics?limit",
        b"/v1/topics?=1", b"/v1/topics?limit=0x10", b"/v1/topics?%ff=1", b"/v1/topics?prefix=%ff",
        b"/v1/topics?" + b"&".join(b"a%d=1" % n for n in range(1_000)),
        b"/v1/topics/t/records?start=-1x", b"/v1/topics/t/records?start=%00",
        b"/v1/topics/t/records?limit=10001",
        b"/v1/topics/t/records?limit=0", b"/v1/topics/t/records?shard=-1",
        b"/v1/topics/t/records?shard=65536", b"/v1/topics/t/records?shard=1",
        b"/v1/topics/t/records?max_bytes=0", b"/v1/topics/t/records?wait=-1",
        b"/v1/topics/t/records?wait=nan", b"/v1/topics/t/records?wait=inf",
        b"/v1/topics/t/records?wait=1e400", b"/v1/topics/t/records?wait=31",
        b"/v1/topics/t/records?values=xml", b"/v1/topics/t/records?gaps=hide",
        b"/v1/topics/t/records?epoch=x", b"/v1/topics/t/records?start=" + b"9" * 65,
        b"/v1/topics/t/records?start=" + b"9" * 60, b"/v1/topics/t/records?%00=%00",
    )  # fmt: skip
    strange = (
        b"healthz", b"\\healthz", b"?", b"#", b"localhost/healthz", b"ftp://localhost/healthz",
        b"http:/healthz", b"http://", b"http://other/healthz", b"http://localhost@other/healthz",
        b"http://localhost:1/healthz", b"file:///etc/passwd", b"javascript:alert(1)",
        b"/health z", b"/health\x00z", b"/health\xffz", b"/h\xc3\xa9", b"/\x7f", b"/\x1b[2J",
        b"/a\rb", b"/a\nb", b"/" + b"a" * 9_000, b"/?" + b"a" * 9_000, b"/" * 9_000,
    )  # fmt: skip
    return [get(path) for path in hidden + strange]


def headers() -> list[bytes]:
    """Fields that are none, too many of them, too long, or twice."""
    cases = [
        get(headers=each)
        for each in (
            b"A\r\n", b": b\r\n", b" A: b\r\n", b"A : b\r\n", b"A\t: b\r\n", b"A b: c\r\n",
            b"A: b\r\n c\r\n", b"A: b\r\n\tc\r\n", b"A: b\x00c\r\n", b"A\x00: b\r\n",
            b"A: b\x01\r\n", b"A: \x1b[2J\r\n", b"A: b\x7f\r\n", b"A: b\rX: y\r\n",
            b"A: b\nX: y\r\n",
            b"A: b\n", b"A\r: b\r\n", b"A\xff: b\r\n", b"\xc3\xa9: b\r\n", b"(A): b\r\n",
            b"A{}: b\r\n", b"A,B: c\r\n", b'"A": b\r\n', b"A/B: c\r\n", b"A@B: c\r\n",
            b"A: " + b"b" * 30_000 + b"\r\n", b"A" * 30_000 + b": b\r\n",
            b"A: " + b" " * 30_000 + b"\r\n", b"A: b\r\n" * 65, b"A: b\r\n" * 10_000,
            b"".join(b"H%d: v\r\n" % n for n in range(200)), b"A: " + b"x" * (1 << 20) + b"\r\n",
            b"Host: localhost\r\n", b"Host: other\r\n", b"HOST: localhost\r\n",
            b"Origin: null\r\n", b"Origin: http://evil.example\r\n", b"Origin: a\r\nOrigin: a\r\n",
            b"Sec-Fetch-Site: cross-site\r\n", b"Content-Length: -1\r\n",
            b"Connection: upgrade\r\nUpgrade: websocket\r\n",
            b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
            b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: x\r\n",
            b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 8\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n",
        )
    ]  # fmt: skip
    cases += [
        get(host=each)
        for each in (
            b"", b"Host:\r\n", b"Host: \r\n", b"Host: evil.example\r\n", b"Host: localhost:x\r\n",
            b"Host: localhost:80:80\r\n", b"Host: local host\r\n", b"Host: localhost,other\r\n",
            b"Host: localhost.\r\n", b"Host: 127.0.0.1.evil.example\r\n", b"Host: [::1\r\n",
            b"Host: \xff\r\n", b"Host: user@localhost\r\n", b"Host: http://localhost\r\n",
            b"Host: localhost/\r\n", b"Host: 127.1\r\n", b"Host: 0x7f000001\r\n",
            b"Host: 2130706433\r\n", b"Host: 0.0.0.0\r\n",
        )
    ]  # fmt: skip
    return cases


def lengths() -> list[bytes]:
    """Where a body ends: the shapes by which requests are smuggled."""
    cases = [
        with_length(each)
        for each in (
            b"", b" ", b"-1", b"+27", b"27 ,", b"27, 27", b"27;27", b"0x1b", b"2 7", b"27\x00",
            b"27a",
            b"a27", b"1e1", b"27.0", b"9" * 30, b"18446744073709551616", b"18446744073709551615",
            b"9223372036854775808", b"8388609", b"\xb2\xb7", b"\xd9\xa1", b"true", b"'27'", b"=27",
        )
    ]  # fmt: skip
    cases += [
        with_length(b"27", b"27"), with_length(b"27", b"26"), with_length(b"26", b"27"),
        with_length(b"0", b"27"), with_length(b"27", more=b"Transfer-Encoding: chunked\r\n"),
        with_length(b"0", more=b"Transfer-Encoding: chunked\r\n", body=PIECES),
        with_length(b"27", more=b"Transfer-Encoding: identity\r\n"),
        with_length(b"27", more=b"Transfer-Encoding:\r\n"),
        with_length(b"27", more=b"Transfer-Encoding : chunked\r\n"),
        with_length(b"27", more=b"Transfer_Encoding: chunked\r\nTransfer-Encoding: x\r\n"),
        with_length(b"27", more=b"X: y\r\n Transfer-Encoding: chunked\r\n"),
    ]  # fmt: skip
    cases += [
        POST + b"Transfer-Encoding: " + coding + b"\r\n\r\n" + PIECES
        for coding in (
            b"identity", b"gzip", b"deflate", b"gzip, chunked", b"chunked, gzip",
            b"chunked, identity",
            b"chunked, chunked", b"chunked,", b",chunked", b"xchunked", b"chunkedx", b"chunked;a=b",
            b'"chunked"', b"chun ked", b"\x0bchunked", b"chunked\x00", b"chunke", b"cow", b"",
            b"chunked\r\nTransfer-Encoding: chunked", b"chunked\r\nTransfer-Encoding: identity",
            b"\r\n chunked", b"chunked\r\nContent-Length: 5", b"br, chunked",
        )
    ]  # fmt: skip
    cases += [
        b"POST /v1/topics/t/records HTTP/1.0\r\n" + HOST
        + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + PIECES,
        POST + b"\r\n" + GOOD,  # neither: no body, and what follows is no request
        POST + b"Content-Length: 10\r\n\r\n" + GOOD,  # a body that is cut, and a request of junk
    ]  # fmt: skip
    return cases


def chunks() -> list[bytes]:
    """How chunks are written."""
    size = b"%x" % len(GOOD)
    return [
        CHUNKED + body
        for body in (
            b"", b"\r\n", b"0", b"0\r\n", b"g\r\nx\r\n0\r\n\r\n", b"-1\r\nx\r\n0\r\n\r\n",
            b"+1\r\nx\r\n0\r\n\r\n", b"0x1\r\nx\r\n0\r\n\r\n", b" 1\r\nx\r\n0\r\n\r\n",
            b"1 \r\nx\r\n0\r\n\r\n", b"\x001\r\nx\r\n0\r\n\r\n", b"1\nx\r\n0\r\n\r\n",
            b"1\rx\r\n0\r\n\r\n", b"1\r\nx\n0\r\n\r\n", b"1\r\nx\r0\r\n\r\n", b"1\r\nxXX0\r\n\r\n",
            b"1\r\nxx\r\n0\r\n\r\n", b"2\r\nx\r\n0\r\n\r\n", b"ffffffffffffffff\r\nx",
            b"fffffffffffffffff\r\nx", b"10000000000000000\r\nx", b"7fffffffffffffff\r\nx",
            b"f" * 1_000 + b"\r\nx", b"0" * 1_000 + b"1\r\nx\r\n0\r\n\r\n"
            + b"GET / HTTP/1.1\r\n\r\n",
            b"1;a\nx\r\n0\r\n\r\n", b"1;a=b\rx\r\n0\r\n\r\n", b"1;a\x00b\r\nx\r\n0\r\n\r\n",
            b"1;a=\"\x00\"\r\nx\r\n0\r\n\r\n", b"1;" + b"a" * 100_000 + b"\r\nx\r\n0\r\n\r\n",
            b"1\r\nx\r\n" * 30_000 + b"0\r\n\r\n", b"1;aaaaaaaaaaaaaaaa\r\nx\r\n" * 10_000
            + b"0\r\n\r\n",
            size + b"\r\n" + GOOD + b"\r\n0\r\nHost: other\r\nA\x00: b\r\n\r\n",
            size + b"\r\n" + GOOD + b"\r\n0\r\n folded: x\r\n\r\n",
            size + b"\r\n" + GOOD + b"\r\n0\r\nno colon\r\n\r\n",
            size + b"\r\n" + GOOD + b"\r\n0\r\nX: " + b"y" * 100_000 + b"\r\n",
            size + b"\r\n" + GOOD + b"0\r\n\r\n", size + b"\r\n" + GOOD + b"\r\n0\r\nX",
            b"\xff\r\nx\r\n0\r\n\r\n", b"1,1\r\nx\r\n0\r\n\r\n", b"1\r\n\r\n0\r\n\r\n",
        )
    ]  # fmt: skip


def bodies() -> list[bytes]:
    """Requests that are whole, with a body that is none of ours."""
    texts = (
        b"", b"{", b"[]", b"null", b"true", b"1", b'"x"', b"{}", b'{"records":{}}',
        b'{"records":1}',
        b'{"records":null}', b'{"records":[1]}', b'{"records":[null]}', b'{"records":[{}]}',
        b'{"records":[{"value":"x","value2":1}]}', b'{"records":[],"x":1}',
        b'{"records":[{"key":1}]}',
        b'{"records":[{"value":"x"}]} x', b'{"records":[{"value":"x"}]},', b'{"records":[,]}',
        b"{'records':[]}", b'{records:[]}', b'{"records":[{"value":"\xff"}]}',
        b'{"records":[{"value":"\\ud800"}]}', b'{"records":[{"value":"\x00"}]}',
        b'{"records":[{"base64":"*"}]}', b'{"records":[{"base64":"eA"}]}',
        b'{"records":[{"base64":1}]}',
        b'{"records":[{"value":"x","base64":"eA=="}]}',
        b'{"records":[{"value":"x","timestamp":"now"}]}',
        b'{"records":[{"value":"x","timestamp":1e400}]}',
        b'{"records":[{"value":"x","timestamp":' + b"9" * 30 + b"}]}",
        b'{"records":[{"value":"x","key":{}}]}', b'{"records":[{"value":"x","tag":1}]}',
        b'{"records":[{"value":"x","tag":"' + b"a" * 5_000 + b'"}]}',
        b'{"records":[{"value":"x","headers":[]}]}',
        b'{"records":[{"value":"x","headers":{"a":1}}]}',
        b'{"records":[{"value":"x","headers":{"a":{"base64":"*"}}}]}', b"\xef\xbb\xbf{}",
        GOOD.decode().encode("utf-16"), b"\x1f\x8b\x08\x00", b"records=1", b"<records/>", b"NaN",
        b'{"records":[NaN]}', b'{"records":[{"value":Infinity}]}', b"[" * 100_000,
        b'{"records":[{"value":{"a":"\xff"}}]}',
        b'{"records":' * 50_000, b'{"records":[{"value":01}]}', b'{"records":[{"value":1.}]}',
        b'{"records":[{"value":"a\nb"}]}', b'{"records":[{"value":"x"}],"create":"yes"}',
        b'{"records":[{"value":"x"}],"idempotency_key":1}',
    )  # fmt: skip
    cases = [with_length(b"%d" % len(text), body=text) for text in texts]
    for media in (
        b"", b"text/plain", b"application/x-www-form-urlencoded",
        b"multipart/form-data; boundary=x",
        b"application/json+x", b"application", b"*/*", b"application/json, text/plain",
        b"\xff/\xff",
        b"application/vnd.apache.arrow.stream", b"application/x-ndjson", b"text/json",
    ):  # fmt: skip
        head = POST.replace(b"application/json", media)
        cases.append(head + b"Content-Length: 7\r\n\r\n{broken")
    cases += [
        with_length(b"27", more=b"Content-Encoding: " + coding + b"\r\n")
        for coding in (b"gzip", b"deflate", b"br", b"zstd", b"compress", b"identity, gzip", b"x")
    ]
    return cases


CORPUS = {
    "lines": lines, "targets": targets, "headers": headers, "lengths": lengths, "chunks": chunks,
    "bodies": bodies,
}  # fmt: skip


@pytest.mark.parametrize("kind", CORPUS)
def test_what_is_no_request_is_refused_and_hurts_nobody(
    kind: str, client: Client, tally: Tallies
) -> None:
    suite = tally("raw requests", lots=2 * len(CORPUS))
    client.append("t", "there")
    server, wrong = client.server, []
    for case in CORPUS[kind]():
        began = time.monotonic()
        heard = told(server, case)
        took = time.monotonic() - began
        suite.count += 1
        for answer in heard:
            if not 400 <= answer.status < 500:
                wrong.append((case[:200], answer.status, answer.body[:200]))
            elif said := judged(answer):
                wrong.append((case[:200], answer.status, said.encode()))
        if took > 2:
            wrong.append((case[:200], 0, b"took %.1f s" % took))
        suite.also["answers"] += len(heard)
        alive(client)
    assert not wrong, "\n".join(map(repr, wrong))
    page = client.get("/v1/topics/t/records").json()
    assert [record["value"] for record in page["records"]] == ["there"], "and nothing got in"


WHOLE = {
    "a GET": get(),
    "a GET without keep-alive": get(headers=b"Connection: close\r\n"),
    "empty lines before it": b"\r\n\r\n" + get(),
    "absolute form": get(b"http://localhost/healthz"),
    "absolute form, with a port": get(
        b"http://LocalHost:4117/healthz", host=b"Host: localhost:4117\r\n"
    ),
    "HEAD": b"HEAD" + get()[3:],
    "headers to the limit": get(headers=b"A: b\r\n" * 63),
    "an upgrade that nobody speaks": get(headers=b"Connection: upgrade\r\nUpgrade: h2c\r\n"),
    "HTTP/1.0": b"GET /healthz HTTP/1.0\r\n" + HOST + b"\r\n",
    "a POST": with_length(b"%d" % len(GOOD)),
    "a POST in chunks": CHUNKED + PIECES,
    "chunks of seven bytes": CHUNKED + b"".join(
        b"%x\r\n%b\r\n" % (len(GOOD[at : at + 7]), GOOD[at : at + 7])
        for at in range(0, len(GOOD), 7)
    ) + b"0\r\n\r\n",
    "chunk extensions and trailers": CHUNKED + b"%X;a=b\r\n" % len(GOOD) + GOOD
    + b"\r\n0;c\r\nHost: evil\r\nOrigin: evil\r\n\r\n",
    "100-continue": with_length(b"%d" % len(GOOD), more=b"Expect: 100-continue\r\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_a_request_is_answered(name: str, client: Client) -> None:
    (answer,) = told(client.server, WHOLE[name], wait=0.1, answered=True)
    assert answer.status == 200, answer.body


def test_http_1_0_is_never_told_to_go_on(server: Server) -> None:
    """It would take that for the answer."""
    whole = with_length(b"%d" % len(GOOD), more=b"Expect: 100-continue\r\n")
    for version, first in ((b"HTTP/1.1", b"HTTP/1.1 100 "), (b"HTTP/1.0", b"HTTP/1.1 200 ")):
        with connected(server) as sock:
            sock.sendall(whole.replace(b"HTTP/1.1", version))
            assert listen(sock, quiet=0.3).startswith(first)


def test_a_request_is_heard_however_it_is_cut_and_given_up_at_every_byte(
    client: Client, tally: Tallies
) -> None:
    suite = tally("raw requests", lots=2)
    whole = CHUNKED + PIECES
    for at in range(1, len(whole)):
        heard = told(client.server, whole[:at], wait=0)
        assert all(400 <= answer.status < 500 for answer in heard), (whole[:at], heard)
        suite.count += 1
    alive(client)
    assert client.get("/v1/topics/t").status == 404, "nothing that was not complete was done"
    for at in range(1, len(whole), 3):
        with connected(client.server) as sock:
            sock.sendall(whole[:at])
            time.sleep(0.002)
            sock.sendall(whole[at:])
            (answer,) = answers(listen(sock, quiet=1.0) if at == 1 else sock.recv(1 << 16))
        assert answer.status == 200, (whole[:at], answer.body)
        suite.count += 1


def test_chunks_that_carry_more_framing_than_data_are_refused(client: Client) -> None:
    """A million callbacks for a megabyte would keep the server busy for others' time."""
    head = CHUNKED.replace(b"application/json", b"application/octet-stream")
    assert (
        told(client.server, head + b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n", wait=1)[0].status == 200
    )
    assert told(client.server, head + b"8\r\n%b\r\n" % (b"x" * 8) * 50_000 + b"0\r\n\r\n", wait=2)[
        0
    ].status == 200  # fmt: skip
    for body in (b"1\r\nx\r\n" * 50_000, b"8;%b\r\n12345678\r\n" % (b"e" * 90) * 10_000):
        (answer,) = told(client.server, head + body + b"0\r\n\r\n", wait=1)
        assert (answer.status, answer.code) == (400, "invalid_request")
    ends = head + b"1\r\nx\r\n0\r\n" + b"T: railer\r\n" * 50_000 + b"\r\n"
    (answer,) = told(client.server, ends, wait=1)
    assert (answer.status, answer.code) == (400, "invalid_request")


def test_a_request_byte_by_byte_is_a_request(client: Client) -> None:
    with connected(client.server) as sock:
        for byte in get():
            sock.sendall(bytes([byte]))
        (answer,) = answers(sock.recv(1 << 16))
    assert answer.status == 200


def test_what_follows_a_request_before_its_answer_is_never_parsed(client: Client) -> None:
    """So nothing can be smuggled behind it: the answer says that the connection closes."""
    second = with_length(b"%d" % len(GOOD))
    for rest in (second, second * 50, b"garbage", b"\x00" * 100_000):
        heard = told(client.server, get() + rest)
        assert [answer.status for answer in heard] == [200]
        assert heard[0].headers["connection"] == "close"
    with connected(client.server) as sock:  # and so while a long poll waits
        client.append("u", "x")
        sock.sendall(get(b"/v1/topics/u/records?start=1&wait=0.4"))
        time.sleep(0.1)
        sock.sendall(second)
        heard = answers(listen(sock))
    assert [answer.status for answer in heard] == [200]
    assert client.get("/v1/topics/t").status == 404


def test_requests_one_after_the_other_share_a_connection(client: Client) -> None:
    with connected(client.server) as sock:
        for n in range(20):
            body = b'{"records":[{"value":"%d"}]}' % n
            sock.sendall(with_length(b"%d" % len(body), body=body))
            (answer,) = answers(sock.recv(1 << 16))
            assert (answer.status, answer.headers.get("connection")) == (200, None)
    assert len(client.get("/v1/topics/t/records").json()["records"]) == 20


def test_a_refusal_reaches_a_client_that_is_still_sending(client: Client) -> None:
    """A reset would take the answer away from under it."""
    head = POST.replace(b"application/json", b"text/plain") + b"Content-Length: 8000000\r\n\r\n"
    with connected(client.server) as sock:
        sock.sendall(head)
        for _ in range(50):
            sock.sendall(b"x" * 10_000)
            time.sleep(0.001)
        (answer,) = answers(listen(sock, quiet=0.3))
        assert (answer.status, answer.headers["connection"]) == (415, "close")
        began = time.monotonic()
        with contextlib.suppress(OSError):  # and who goes on sending is cut off
            while time.monotonic() - began < 10:
                sock.sendall(b"x" * 10_000)
                time.sleep(0.01)
        assert time.monotonic() - began < 5


def test_names_and_ids_cannot_split_an_answer(client: Client, server: Server) -> None:
    """X13: whatever a client names comes back in a body, escaped, or not at all."""
    breaks = ("\r\n", "\n", "\r", "\x00", "\u2028", "\x0b", "\x85", "\x1b[2J", "é", '"', "\\")
    evil = [f"a{mark}X-Evil: 1{mark}{mark}<script>" for mark in breaks]
    tried = 0

    def check(answer_headers: dict[str, str], what: str) -> None:
        nonlocal tried
        tried += 1
        assert "x-evil" not in answer_headers, what
        assert not any("evil" in value.lower() for value in answer_headers.values()), what

    for text in evil:
        name = quote(text, safe="")
        for path in (
            f"/v1/topics/{name}", f"/v1/topics/{name}/records", f"/{name}",
            f"/v1/topics?prefix={name}",
            f"/v1/topics?cursor={name}", f"/v1/topics?{name}=1",
            f"/v1/topics/t/records?start={name}",
            f"/v1/topics/t/records?skip_node={name}",
        ):  # fmt: skip
            answer = client.get(path)
            assert answer.status < 500, answer.body
            check(answer.headers, path)
        body = {"records": [{"value": text, "key": text, "tag": text, "node": text}]}
        answer = client.call("POST", "/v1/topics/t/records", body)
        assert answer.status < 500, answer.body
        check(answer.headers, "body")
        for header in ("Idempotency-Key", "Esker-Tag", "Esker-Key", "Accept", "Content-Type"):
            raw = b"POST /v1/topics/t/records HTTP/1.1\r\n" + HOST
            raw += b"Content-Length: 0\r\n" + header.encode() + b": " + text.encode() + b"\r\n\r\n"
            for heard in told(server, raw, wait=0.01):
                assert heard.status < 500, heard.body
                check(heard.headers, header)
    assert tried >= 100
    for record in client.get("/v1/topics/t/records").json()["records"]:
        assert record["value"] in evil, "what got in is as it was sent"


def test_a_header_of_an_answer_that_holds_a_line_break_is_an_internal_error(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from esker.server.http.call import Call, Reply

    async def evil(call: Call) -> Reply:
        return Reply({}, headers=(("esker-next", "1\r\nset-cookie: x"),))

    app = client.server.app
    for route in app.handlers:
        if route.path == "/healthz":
            monkeypatch.setitem(app.handlers, route, evil)
    answer = client.get("/healthz")
    assert (answer.status, answer.code) == (500, "internal")
    assert "set-cookie" not in answer.headers


def test_half_open_connections_are_let_go(client: Client) -> None:
    """A client that vanishes in the middle of a request leaves nothing behind."""
    state = client.server._uvicorn.server_state
    alive(client)
    before = len(state.connections)
    for piece in (
        b"",
        b"GET",
        get()[:-2],
        POST + b"Content-Length: 100\r\n\r\nx",
        CHUNKED + b"5\r",
    ):
        sock = connected(client.server)
        sock.sendall(piece)
        time.sleep(0.01)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        sock.close()  # with a reset
    for _ in range(100):
        if len(state.connections) == before and len(state.tasks) == 0:
            break
        time.sleep(0.02)
    assert len(state.connections) == before
    assert len(state.tasks) == 0
