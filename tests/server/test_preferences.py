"""What a client would rather have, and what it has already."""

from __future__ import annotations

import pytest

from esker.server.http.preferences import is_known, preferred
from tests.helpers import wait_until
from tests.server.conftest import Client

JSON, NDJSON, ARROW, CSV = OFFERED = (
    "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream", "text/csv",
)  # fmt: skip


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", JSON),
        ("*/*", JSON),
        ("text/*", CSV),
        ("TEXT/CSV", CSV),
        (f"{NDJSON}, {JSON}", NDJSON),  # alike: the one that is named first
        (f"{JSON};q=0.1, {NDJSON}", NDJSON),
        (f"{JSON};q=0.1, {NDJSON};q=0.2, {CSV};q=0.15", NDJSON),
        (f"*/*;q=0.1, {CSV}", CSV),
        (f"{JSON};q=0, */*", NDJSON),  # anything but
        (f"application/*;q=0.2, {ARROW};q=0.9, text/*;q=0.5", ARROW),
        (f"{ARROW}; charset=utf-8; Q = 1", ARROW),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8", JSON),
        (f"{CSV};q=much, {JSON};q=0.9", CSV),  # what is no number is not there
        (f"{JSON};q=0", None),
        ("*/*;q=0", None),
        ("application/xml", None),
        ("json", None),
    ],
)
def test_what_is_wanted_most_is_given(accept: str, expected: str | None) -> None:
    assert preferred(accept, OFFERED) == expected


@pytest.mark.parametrize(
    ("known", "same"),
    [
        (None, False), ('"a"', True), ('W/"a"', True), ('"b", "a"', True), ('"b",W/"a"', True),
        ("*", True), ('"b"', False), ("a", False), ('"A"', False), ("", False),
    ],
)  # fmt: skip
def test_a_tag_is_known_alone_in_a_list_and_when_a_proxy_made_it_weak(
    known: str | None, same: bool
) -> None:
    assert is_known(known, '"a"') is same


def test_a_server_gives_what_is_wanted_and_nothing_that_is_there(client: Client) -> None:
    client.call("PUT", "/v1/topics/t", {"segment_records": 4})
    for number in range(5):
        client.append("t", str(number))
    path = "/v1/topics/t/records?start=0&limit=2"
    answer = client.get(path, Accept=f"{JSON};q=0.5, {CSV}")
    assert answer.headers["content-type"] == CSV
    assert client.get(path, Accept=f"{JSON};q=0").code == "not_acceptable"
    wait_until(lambda: "etag" in client.get(path).headers, "the first segment to be sealed")
    tag = client.get(path).headers["etag"]
    for known in (f"W/{tag}", f'"old", {tag}', "*"):
        assert client.get(path, **{"If-None-Match": known}).status == 304
    page = client.get("/").headers["etag"]
    assert client.get("/", **{"If-None-Match": f'"x", W/{page}'}).status == 304
