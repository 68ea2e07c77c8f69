"""What people do in the console, done in a real browser, each flow to its end."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import esker
from esker.server.access.keyfile import new
from esker.server.run import serving
from esker.server.settings import Settings
from tests.console.conftest import House, Visit

pytestmark = pytest.mark.slow  # a browser, for seconds each

Open = Callable[..., Visit]
expect: Any = pytest.importorskip("playwright.sync_api").expect
expect.set_options(timeout=30_000)


CHANGE = "it => {{ it.value = {}; it.dispatchEvent(new Event('change', {{bubbles: true}})) }}"


def rows(page: Any) -> Any:
    return page.locator("[data-row]")


def sure(page: Any, yes: str, text: str | None = None) -> None:
    """Answer the question that the page asks."""
    question = page.get_by_role("dialog").get_by_role("heading").inner_text()
    dialog = page.get_by_role("dialog", name=question)
    if text is not None:
        dialog.get_by_role("textbox").fill(text)
    dialog.get_by_role("button", name=yes, exact=True).click()
    expect(dialog).to_have_count(0)  # another one may follow


def at_top(page: Any, row: str) -> None:
    """Wait until this record is the first that is seen; there may be others above it."""
    page.wait_for_function(
        """row => {
          const box = document.querySelector('.rows');
          if (!box) return false;
          const edge = box.getBoundingClientRect().top + 16;
          const seen = [...box.querySelectorAll('[data-row]')].find(
            each => each.getBoundingClientRect().top >= edge);
          return seen && seen.dataset.row === row;
        }""",
        arg=row,
    )


def scrolled_to(page: Any, box: Any, place: str, row: str) -> None:
    """Scroll there again and again, as people do, until a record is in the list."""
    for _ in range(200):
        if page.locator(f"[data-row='{row}']").count():
            return
        box.evaluate(f"box => {{ box.scrollTop = box.scrollHeight / 2; box.scrollTop = {place} }}")
        page.wait_for_timeout(50)
    raise AssertionError(f"{row} did not come")


# ---- records ---------------------------------------------------------------------------------


def test_a_tail_follows_pauses_and_goes_on_without_losing_anything(
    house: House, visit: Open
) -> None:
    house.append("orders", "one", "two")
    page = visit(house.url).go()
    page.get_by_role("link", name="orders", exact=True).click()
    expect(rows(page)).to_have_count(2)
    house.append("orders", "three")
    expect(page.get_by_text("three", exact=True)).to_be_visible()

    page.get_by_role("button", name="Live").click()
    expect(page.get_by_role("button", name="Paused")).to_be_visible()
    house.append("orders", "four", "five")
    expect(page.locator(".where-we-are")).to_contain_text("2 records since")
    expect(rows(page)).to_have_count(3)

    page.get_by_role("button", name="Paused").click()
    expect(page.get_by_text("five", exact=True)).to_be_visible()
    expect(rows(page)).to_have_count(5)
    assert page.locator(".offset").all_inner_texts() == ["0", "1", "2", "3", "4"]


def test_a_topic_that_is_made_anew_while_it_is_followed_is_shown_from_its_beginning(
    house: House, visit: Open
) -> None:
    house.append("t", "one", "two", "three")
    page = visit(house.url).go("topics/t")
    expect(rows(page)).to_have_count(3)
    house.do("DELETE", "/v1/topics/t")
    expect(page.get_by_text("the topic was deleted here")).to_be_visible()
    house.append("t", "new one", "new two")
    expect(page.get_by_text("new two", exact=True)).to_be_visible()
    expect(page.get_by_text("its offsets begin again")).to_be_visible()
    assert page.locator(".offset").all_inner_texts() == ["0", "1"]


def test_seeking_by_offset_and_by_time_and_scrolling_both_ways(house: House, visit: Open) -> None:
    base = 1_700_000_000_000_000
    for n in range(5):
        house.append("t", *(
            {"value": f"v{n * 1000 + m}", "timestamp": base + (n * 1000 + m) * 1_000_000}
            for m in range(1000)
        ))  # fmt: skip
    page = visit(house.url).go("topics/t")
    expect(rows(page).first).to_be_visible()
    seek = page.get_by_label("Seek to an offset or a time")
    seek.fill("2500")
    seek.press("Enter")
    at_top(page, "0-2500")
    assert "at=2500" in page.url

    box = page.get_by_role("list", name="Records")
    scrolled_to(page, box, "box.scrollHeight", "0-3200")
    assert rows(page).count() <= 600  # a window, wherever it is
    scrolled_to(page, box, "0", "0-2400")
    found = [int(each) for each in page.locator(".offset").all_inner_texts()]
    assert found == list(range(found[0], found[0] + len(found)))

    seek.fill("@2023-11-14T23:13:20Z")  # an hour behind the first
    seek.press("Enter")
    at_top(page, "0-3600")
    page.reload()
    at_top(page, "0-3600")
    scrub = page.get_by_label("Place in the shard")
    scrub.evaluate(CHANGE.format(1234))
    at_top(page, "0-1234")


def test_a_page_that_nobody_sees_lets_its_stream_go(house: House, visit: Open) -> None:
    def streams(wanted: int) -> None:
        end = time.monotonic() + 30
        while house.do("GET", "/v1/overview")["server"]["streams"] != wanted:
            assert time.monotonic() < end
            page.wait_for_timeout(50)

    house.append("t", "before")
    page = visit(house.url).go("topics/t")
    expect(rows(page)).to_have_count(1)
    streams(1)
    hide = (
        "(away) => { Object.defineProperty(document, 'hidden', {value: away, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange')) }"
    )
    page.evaluate(hide, True)
    streams(0)
    house.append("t", "meanwhile")
    page.evaluate(hide, False)
    expect(page.get_by_text("meanwhile", exact=True)).to_be_visible()
    streams(1)


def test_scrolling_up_pauses_and_goes_on_into_what_was_before(house: House, visit: Open) -> None:
    house.append("t", *(f"v{n}" for n in range(500)))
    page = visit(house.url).go("topics/t")
    expect(page.locator("[data-row='0-499']")).to_have_count(1)
    assert page.locator("[data-row='0-400']").count() == 0
    box = page.get_by_role("list", name="Records")
    box.hover()
    page.mouse.wheel(0, -200)
    expect(page.get_by_role("button", name="Paused")).to_be_visible()
    house.append("t", "while reading")
    for _ in range(200):
        page.mouse.wheel(0, -400)
        if page.locator("[data-row='0-300']").count():
            break
        page.wait_for_timeout(30)
    expect(page.locator("[data-row='0-300']")).to_have_count(1)
    found = [int(each) for each in page.locator(".offset").all_inner_texts()]
    assert found == list(range(found[0], found[-1] + 1))
    page.get_by_role("button", name="Follow").click()
    expect(page.get_by_text("while reading", exact=True)).to_be_visible()


@pytest.mark.slow
def test_ten_million_records_are_a_few_hundred_to_the_page(fast: str, visit: Open) -> None:
    with esker.open(f"{fast}/data") as store:
        for n in range(10):
            numbers = pa.arange(n * 1_000_000, (n + 1) * 1_000_000)
            store["big"].append_arrow(
                pa.table({"value": numbers.cast(pa.string()).cast(pa.binary())})
            )
    with serving(f"{fast}/data", Settings(port=0)) as server:
        page = visit(server.url).go("topics/big")
        expect(page.get_by_text("9999999", exact=True)).to_have_count(2)  # its offset and its value
        expect(page.locator(".facts")).to_contain_text("10,000,000 records")
        seek = page.get_by_label("Seek to an offset or a time")
        seek.fill("7654321")
        seek.press("Enter")
        at_top(page, "0-7654321")
        box = page.get_by_role("list", name="Records")
        scrolled_to(page, box, "box.scrollHeight", "0-7655000")
        scrub = page.get_by_label("Place in the shard")
        scrub.evaluate(CHANGE.format(3_000_000))
        at_top(page, "0-3000000")
        assert rows(page).count() <= 600
        loaded = page.evaluate(
            "performance.getEntriesByType('resource').reduce((sum, e) => sum + e.transferSize, 0)"
        )
        assert 0 < loaded < 3_000_000
        page.close()  # before its server ends


def test_a_filter_is_applied_to_what_is_there_and_to_what_comes(house: House, visit: Open) -> None:
    house.append("t", *(
        {"value": {"n": n}, "key": f"k{n}", "tag": ("us", "eu")[n % 2], "headers": {"kind": "a"}}
        for n in range(10)
    ))  # fmt: skip
    page = visit(house.url).go("topics/t")
    expect(rows(page)).to_have_count(10)
    where = page.get_by_label("Filter", exact=True)
    where.fill('tag == "eu" and json.n > 4 and header.kind == "a"')
    where.press("Enter")
    expect(rows(page)).to_have_count(3)
    house.append(
        "t",
        {"value": {"n": 99}, "tag": "us"},
        {"value": {"n": 77}, "tag": "eu", "headers": {"kind": "a"}},
    )
    expect(rows(page)).to_have_count(4)
    expect(page.get_by_text('{"n":77}')).to_be_visible()
    page.get_by_role("button", name="Clear").click()
    expect(rows(page)).to_have_count(12)
    rows(page).first.get_by_role("button", name="us").click()  # the tag of a row
    expect(rows(page)).to_have_count(6)
    where.fill('key == "k3"')
    where.press("Enter")
    expect(rows(page)).to_have_count(1)


def test_a_filter_with_a_mistake_says_what_and_where(house: House, visit: Open) -> None:
    house.append("t", "x")
    seen = visit(house.url)
    seen.allowed = ("400",)
    page = seen.go("topics/t?at=0")
    expect(rows(page)).to_have_count(1)
    page.get_by_label("Filter", exact=True).fill('tags == "eu"')
    page.get_by_label("Filter", exact=True).press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("did you mean 'tag'?")


def test_a_record_has_a_permalink_that_lasts(house: House, visit: Open) -> None:
    house.append("t", "first", {
        "value": '{"id": 12345678901234567890, "deep": {"list": [1, {}]}}', "key": "k-7",
        "tag": "eu", "headers": {"trace": "abc"},
    }, {"base64": "/wABAgM="})  # fmt: skip
    seen = visit(house.url)
    page = seen.go("topics/t")
    rows(page).nth(1).click()
    drawer = page.get_by_label("Record", exact=True)
    expect(drawer.get_by_text("12345678901234567890")).to_be_visible()  # as it was written
    seen.shot("record")
    drawer.get_by_role("link", name="Permalink").click()
    expect(page).to_have_url(re.compile(r"#/topics/t/0/1$"))
    page.reload()
    expect(page.get_by_label("Value")).to_contain_text('"id": 12345678901234567890')
    expect(page.get_by_text("trace")).to_be_visible()
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_label("Value")).to_contain_text("ff 00 01 02 03")
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_text("It is not there yet")).to_be_visible()


def test_lost_records_are_told_in_their_place(house: House, visit: Open) -> None:
    house.evicted("t")
    page = visit(house.url).go("topics/t?at=0")
    expect(page.locator(".hole")).to_contain_text("are gone")
    page.get_by_role("link", name="Segments").click()
    expect(page.get_by_role("cell", name="evicted")).to_be_visible()
    expect(page.locator(".segment.sealed").first).to_be_visible()
    page.goto(f"{house.url}/#/topics/t/0/3")
    expect(page.get_by_text("This record is gone")).to_be_visible()


def test_appending_by_the_form(house: House, visit: Open) -> None:
    house.append("t", "x")
    page = visit(house.url).go("topics/t/append")
    page.get_by_label("Value", exact=True).fill('{"amount": 5}')
    page.get_by_label("Key", exact=True).fill("k")
    page.get_by_label("Tag", exact=True).fill("eu")
    page.get_by_label(re.compile("^Headers")).fill("kind: paid\ntrace: a:b")
    page.get_by_role("button", name="Append").click()
    page.get_by_role("link", name="offset 1 of shard 0").click()
    expect(page.get_by_label("Value", exact=True)).to_contain_text('"amount": 5')
    found = house.do("GET", "/v1/topics/t/records?start=1")["records"][0]
    assert found["value"] == '{"amount": 5}'
    assert (found["key"], found["tag"]) == ("k", "eu")
    assert found["headers"] == {"kind": "paid", "trace": "a:b"}
    page.goto(f"{house.url}/#/topics/t/append")
    page.get_by_label("The value is").select_option("base64")
    page.get_by_label("Value", exact=True).fill("/wA=")
    page.get_by_role("button", name="Append").click()
    expect(page.get_by_text("offset 2 of shard 0")).to_be_visible()
    assert house.do("GET", "/v1/topics/t/records?start=2")["records"][0]["base64"] == "/wA="


def test_an_export_is_downloaded_and_imported_again(
    house: House, visit: Open, tmp_path: Path
) -> None:
    house.append(
        "t",
        *({"value": f"v{n}", "key": f"k{n}", "tag": "eu"} for n in range(2500)),
        {"base64": "/wA="},
    )
    page = visit(house.url).go("topics/t/transfer")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download").click()
    file = tmp_path / "t.ndjson"
    waiting.value.save_as(file)
    assert waiting.value.suggested_filename == "t.ndjson"
    lines = [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]
    assert [each["offset"] for each in lines] == list(range(2501))
    page.locator("select[name=format]").select_option("csv")
    page.get_by_label(re.compile("^From")).fill("-2")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download").click()
    assert len(Path(waiting.value.path()).read_text().splitlines()) == 3
    page.get_by_label("File").set_input_files(file)
    page.get_by_role("button", name="Import", exact=True).click()
    expect(page.get_by_text("2,501 records imported.")).to_be_visible()
    found = house.do("GET", "/v1/topics/t/records?start=2501&limit=10000")["records"]
    assert [each.get("value") for each in found] == [each.get("value") for each in lines]
    assert found[-1]["base64"] == "/wA="
    bad = tmp_path / "bad.ndjson"
    bad.write_text('{"value": "good"}\n{"value": \n')
    page.get_by_label("File").set_input_files(bad)
    page.get_by_role("button", name="Import", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("line 2")


# ---- rooms -----------------------------------------------------------------------------------


def test_the_overview_moves_with_what_is_appended(house: House, visit: Open) -> None:
    house.append("t", "x")
    page = visit(house.url).go()
    chart = page.get_by_role("img", name=re.compile("^Records a second"))
    expect(chart).to_have_attribute("data-points", re.compile(r"^[2-9]"))
    house.append("t", *map(str, range(500)))
    expect(page.get_by_role("row", name=re.compile("^t 501"))).to_be_visible()
    page.wait_for_function(
        "() => [...document.querySelectorAll('.tile')].some(e => /Appended/.test(e.textContent)"
        " && parseFloat(e.querySelector('.value').textContent) > 0)"
        " || /appended: [1-9]/.test(document.querySelector('[role=img]').ariaLabel)"
    )
    page.keyboard.press("/")
    page.keyboard.type("none")
    expect(page.get_by_text("No topic begins so.")).to_be_visible()


def test_the_lag_of_a_group_is_drawn_and_falls_when_it_acks(house: House, visit: Open) -> None:
    house.append("t", *map(str, range(300)))
    house.do("PUT", "/v1/topics/t/groups/billing", {"start": "earliest"})
    seen = visit(house.url)
    page = seen.go("groups")
    chart = page.get_by_role("img", name=re.compile("^Lag in records"))
    expect(chart).to_have_attribute("aria-label", re.compile("billing: 300"))
    polled = house.do("POST", "/v1/topics/t/groups/billing/poll", {"max_records": 200})
    acks = [
        {key: each[key] for key in ("shard", "generation", "first", "next")}
        for each in polled["batches"]
    ]
    house.do("POST", "/v1/topics/t/groups/billing/ack", {"acks": acks})
    expect(chart).to_have_attribute("aria-label", re.compile("billing: 100"))
    house.do("POST", "/v1/topics/t/groups/billing/leave", {})
    page.get_by_role("link", name="billing").click()
    page.get_by_role("button", name="Pause").click()
    sure(page, "Yes")
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    assert house.do("GET", "/v1/topics/t/groups/billing")["paused"] is True
    page.get_by_role("button", name="Resume").click()
    sure(page, "Yes")
    page.get_by_role("button", name="Seek").click()
    sure(page, "Look", "latest")
    expect(page.get_by_role("dialog")).to_contain_text("shard 0: 200 to 300")
    sure(page, "Move it")
    expect(page.get_by_role("cell", name="300").first).to_be_visible()
    assert house.do("GET", "/v1/topics/t/groups/billing")["records"] == 0


def test_the_board_of_a_queue_requeues_releases_and_purges_after_asking(
    house: House, visit: Open
) -> None:
    house.do("PUT", "/v1/queues/emails", {"max_deliveries": 1, "lease": "10m"})
    house.do("POST", "/v1/queues/emails/jobs", {"jobs": [{"value": f"job-{n}"} for n in range(6)]})
    claimed = house.do("POST", "/v1/queues/emails/claim", {"max": 4})["jobs"]
    dead = [{key: each[key] for key in ("shard", "offset", "token")} for each in claimed[:2]]
    house.do("POST", "/v1/queues/emails/nack", {"jobs": dead, "reason": "poison"})
    seen = visit(house.url)
    page = seen.go("queues")
    page.get_by_role("link", name="emails").click()
    column = {
        name: page.get_by_role("region", name=name)
        for name in ("Ready", "Leased", "Delayed", "Dead")
    }
    expect(column["Dead"]).to_contain_text("poison")
    seen.shot("queue")

    column["Dead"].get_by_role("article").filter(has_text="job-0").get_by_role(
        "button", name="Requeue"
    ).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Cancel").click()  # nothing happens without a yes
    expect(dialog).to_have_count(0)
    assert house.do("GET", "/v1/queues/emails")["dead"] == 2
    column["Dead"].get_by_role("article").filter(has_text="job-0").get_by_role(
        "button", name="Requeue"
    ).click()
    sure(page, "Requeue")
    expect(column["Ready"]).to_contain_text("job-0")
    assert house.do("GET", "/v1/queues/emails")["dead"] == 1

    column["Leased"].get_by_role("article").filter(has_text="job-2").get_by_role(
        "button", name="Release"
    ).click()
    sure(page, "Release")
    expect(column["Ready"]).to_contain_text("job-2")
    column["Leased"].get_by_role("article").filter(has_text="job-3").get_by_role(
        "button", name="Nack"
    ).click()
    sure(page, "Nack", "the worker hangs")
    expect(column["Dead"]).to_contain_text("the worker hangs")

    column["Dead"].get_by_role("button", name="Purge all").click()
    sure(page, "Purge all")
    expect(column["Dead"].get_by_role("article")).to_have_count(0)
    page.get_by_label("Put a job").fill("by hand")
    page.get_by_role("button", name="Put", exact=True).click()
    expect(column["Ready"]).to_contain_text("by hand")
    page.get_by_label("Put a job").fill("not yet")
    page.get_by_label("Not before").fill("1h")
    page.get_by_role("button", name="Put", exact=True).click()
    expect(column["Delayed"].get_by_role("article")).to_contain_text("not yet")
    expect(column["Delayed"].get_by_role("article")).to_contain_text("in 60 min")
    expect(column["Ready"]).not_to_contain_text("not yet")
    page.get_by_role("button", name="Pause").click()
    sure(page, "Pause")
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    page.get_by_role("button", name="Purge waiting").click()
    sure(page, "Purge")
    expect(column["Ready"].get_by_role("article")).to_have_count(0)
    state = house.do("GET", "/v1/queues/emails")
    assert (state["unfinished"], state["dead"], state["paused"]) == (0, 0, True)


def test_a_route_is_paused_and_goes_on(house: House, visit: Open) -> None:
    house.append("orders", *({"value": {"n": n}} for n in range(10)))
    house.do(
        "PUT", "/v1/routes/big", {"source": "orders", "destination": "big", "where": "json.n > 4"}
    )
    page = visit(house.url).go("routes")
    row = page.get_by_role("row", name=re.compile("^big"))
    expect(row).to_contain_text("json.n > 4")
    row.get_by_role("button", name="Pause").click()
    sure(page, "Pause")
    expect(row).to_contain_text("paused")
    house.append("orders", *({"value": {"n": n}} for n in range(50)))
    chart = page.get_by_role("img", name=re.compile("^Lag in records"))
    expect(chart).to_have_attribute("aria-label", re.compile("big: [1-9]"))
    row.get_by_role("button", name="Resume").click()
    sure(page, "Resume")
    expect(chart).to_have_attribute("aria-label", re.compile("big: 0"))
    assert house.do("GET", "/v1/routes/big")["state"] in ("running", "waiting")
    page.get_by_role("link", name="Groups").click()
    expect(page.get_by_role("row", name=re.compile("^route big orders"))).to_be_visible()


def test_the_store_shows_its_health(house: House, visit: Open) -> None:
    house.append("t", "x")
    page = visit(house.url).go("store")
    expect(page.get_by_text("healthy")).to_be_visible()
    expect(page.get_by_text("there was nothing to recover")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^Pressure"))).to_be_visible()


def test_a_topic_is_made_and_one_that_is_not_there_is_told(house: House, visit: Open) -> None:
    seen = visit(house.url)
    seen.allowed = ("404", "400")
    page = seen.go()
    expect(page.get_by_text("No topics yet.")).to_be_visible()
    page.get_by_role("button", name="New topic").click()
    sure(page, "Make it", "fresh")
    expect(page.get_by_role("link", name="fresh")).to_be_visible()
    page.get_by_role("button", name="New topic").click()
    sure(page, "Make it", "no/such name")
    expect(page.get_by_role("status").filter(has_text="no/such name")).to_be_visible()
    page.goto(f"{house.url}/#/topics/none")
    expect(page.get_by_text("There is no topic of this name")).to_be_visible()


# ---- who may what ----------------------------------------------------------------------------


def test_logging_in_with_a_key_and_what_it_may_not(tmp_path: Path, visit: Open) -> None:
    path = str(tmp_path / "keys")
    _, full = new(path, ["read", "write", "consume", "delete", "admin"])
    _, reader = new(path, ["read"], prefixes=["t"])
    with serving(tmp_path / "data", Settings(port=0, keys=path)) as server:
        house = House(server)
        key = {"Authorization": f"Bearer {full}"}
        house.do("POST", "/v1/topics/t/records", {"records": [{"value": "secret"}]}, **key)
        house.do("POST", "/v1/topics/other/records", {"records": [{"value": "x"}]}, **key)
        seen = visit(server.url)
        seen.allowed = ("401",)
        page = seen.go()
        page.get_by_label("Key").fill("esk_000000000000_" + "0" * 64)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("not known here")
        page.get_by_label("Key").fill(reader)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_text("read-only")).to_be_visible()
        expect(page.get_by_role("link", name="other")).to_have_count(0)
        expect(page.get_by_role("button", name="New topic")).to_have_count(0)
        page.get_by_role("link", name="t", exact=True).click()
        expect(page.get_by_text("secret", exact=True)).to_be_visible()  # by a ticket
        page.goto(f"{server.url}/#/topics/t/append")
        expect(page.get_by_text("needs the scope write")).to_be_visible()
        page.get_by_role("link", name="Export").click()
        with page.expect_download() as waiting:
            page.get_by_role("button", name="Download").click()
        assert b"secret" in Path(waiting.value.path()).read_bytes()
        assert page.get_by_label("File").count() == 0

        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Key")).to_be_visible()
        page.get_by_label("Key").fill(full)
        page.get_by_role("button", name="Log in").click()
        page.goto(f"{server.url}/#/topics/t/append")
        page.get_by_label("Value", exact=True).fill("appended")
        page.get_by_role("button", name="Append").click()
        expect(page.get_by_text("offset 1 of shard 0")).to_be_visible()
        for url in seen.asked:
            assert reader[17:] not in url
            assert full[17:] not in url
        assert page.evaluate("Object.values(localStorage).join()").count("esk_") == 0
        page.close()  # before its server ends
        house.client.close()


def test_a_read_only_server_shows_and_offers_no_change(tmp_path: Path, visit: Open) -> None:
    with serving(tmp_path / "data", Settings(port=0)) as server:
        house = House(server)
        house.append("t", "x")
        house.do("PUT", "/v1/queues/q", {})
        house.do("POST", "/v1/queues/q/jobs", {"jobs": [{"value": "a"}]})
        house.do("PUT", "/v1/topics/t/groups/g", {})
        house.client.close()
    with serving(tmp_path / "data", Settings(port=0, read_only=True)) as server:
        seen = visit(server.url)
        page = seen.go()
        expect(page.get_by_text("read-only")).to_be_visible()
        for place in ("", "topics/t/append", "topics/t/transfer", "queues/q", "groups/t/g"):
            page.goto(f"{server.url}/#/{place}")
            expect(page.locator("main h1")).to_be_visible()
            page.wait_for_timeout(300)
            for name in ("New topic", "Append", "Import", "Pause", "Purge waiting", "Seek", "Put"):
                assert page.get_by_role("button", name=name, exact=True).count() == 0, (place, name)
        page.goto(f"{server.url}/#/queues/q")
        expect(page.get_by_role("region", name="Ready")).to_contain_text("a")
        page.close()


# ---- hostile content -------------------------------------------------------------------------

HOSTILE = [
    "<script>window.hit = 1</script>", "<img src=x onerror='window.hit=2'>",
    "<svg onload=window.hit=3>", "javascript:window.hit=4", '"><script>window.hit=5</script>',
    "</textarea><script>window.hit=6</script>", "${window.hit=7}",
    "{{constructor.constructor('window.hit=8')()}}",
    "\u202egnp.exe", "a\u0000b", "\u2028\u2029", "<a href=//evil.example>x</a>",
    "<style>*{display:none}</style>", "<iframe srcdoc='<script>parent.hit=9</script>'></iframe>",
    "<base href=//evil.example>", "<link rel=stylesheet href=//evil.example/x.css>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>", "%3Cscript%3E", "&lt;b&gt;",
    "' or 1=1 --",
    "__proto__", "constructor", "toString", "[object Object]", "\ud7ff\ue000", "x" * 5000,
]  # fmt: skip


def test_hostile_values_keys_tags_headers_and_reasons_are_inert(house: House, visit: Open) -> None:
    names = [each for each in HOSTILE if len(each) < 100]
    house.append("t", *(
        {"value": each, "key": each, "tag": each.replace("\0", ""), "node": each.replace("\0", ""),
         "headers": {each.replace("\0", "")[:60]: each}}
        for each in names
    ), {"value": json.dumps({each: each for each in names})}, HOSTILE[-1])  # fmt: skip
    house.do("PUT", "/v1/queues/q", {"max_deliveries": 1})
    house.do(
        "POST", "/v1/queues/q/jobs", {"jobs": [{"value": each, "key": each} for each in names]}
    )
    jobs = house.do("POST", "/v1/queues/q/claim", {"max": 10})["jobs"]
    for job, text in zip(jobs, names, strict=False):
        token = {key: job[key] for key in ("shard", "offset", "token")}
        house.do("POST", "/v1/queues/q/nack", {"jobs": [token], "reason": text})
    seen = visit(house.url)
    page = seen.go("topics/t")
    expect(rows(page)).to_have_count(len(names) + 2)
    for number in range(len(names) + 2):
        page.goto(f"{house.url}/#/topics/t/0/{number}")
        expect(page.locator(".record h2")).to_have_text(f"Record {number}")
        expect(page.get_by_label("Value")).to_be_visible()
    page.goto(f"{house.url}/#/queues/q")
    expect(page.get_by_role("region", name="Dead").get_by_role("article")).to_have_count(10)
    expect(page.get_by_text(HOSTILE[0]).first).to_be_visible()
    for place in (
        "topics/" + HOSTILE[0].replace("/", "%2F"),
        "topics/%00",
        "topics/..%2F..",
        "nowhere/<b>",
        "groups/%FF/x",
    ):
        seen.allowed = ("404", "400")
        page.goto(f"{house.url}/#/{place}")
        expect(page.locator("main h1")).to_be_visible()
    assert page.evaluate("window.hit") is None
    assert (
        page.locator("main script, main iframe, main style, main link, main base, main img").count()
        == 0
    )


def test_markup_is_refused_by_the_browser_itself(house: House, visit: Open) -> None:
    seen = visit(house.url)
    seen.allowed = ("Trusted", "TrustedHTML", "Content Security Policy", "inline")
    page = seen.go()
    expect(page.locator("main h1")).to_be_visible()
    assert (
        page.evaluate(
            "() => { try { document.body.innerHTML = '<b>x</b>' } catch (e) { return e.name } }"
        )
        == "TypeError"
    )
    page.evaluate(
        "() => { const s = document.createElement('style'); s.textContent = 'body{display:none}';"
        " document.head.append(s) }"
    )
    expect(page.locator("main h1")).to_be_visible()


# ---- looks -----------------------------------------------------------------------------------


def filled(house: House) -> None:
    house.do("PUT", "/v1/topics/orders", {"shards": 2})
    house.append("orders", *(
        {"value": {"order": n, "amount": n * 7}, "key": f"c-{n % 9}", "tag": ("eu", "us")[n % 2]}
        for n in range(200)
    ))  # fmt: skip
    house.append("long." + "name." * 40, "x" * 4000)
    house.do("PUT", "/v1/queues/emails", {"max_deliveries": 1})
    house.do("POST", "/v1/queues/emails/jobs", {"jobs": [{"value": "y" * 300, "key": "k" * 200}]})
    house.do("PUT", "/v1/topics/orders/groups/billing", {"start": "earliest"})
    house.do(
        "PUT",
        "/v1/routes/big",
        {"source": "orders", "destination": "payments", "where": "json.amount > 300"},
    )


PLACES = (
    "", "topics/orders", "topics/orders/segments", "topics/orders/append", "topics/orders/transfer",
    "topics/orders/options", "topics/orders/0/3", "groups", "groups/orders/billing", "queues",
    "queues/emails", "routes", "store",
)  # fmt: skip


@pytest.mark.slow
def test_every_page_fits_a_phone(house: House, visit: Open) -> None:
    filled(house)
    seen = visit(house.url, viewport={"width": 360, "height": 740}, has_touch=True)
    for place in (*PLACES, "topics/long." + "name." * 40):
        page = seen.go(place)
        expect(page.locator("main h1")).to_be_visible()
        page.wait_for_timeout(250)
        width = page.evaluate(
            "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"
        )
        assert width <= 360, (place, width)
        seen.shot(f"phone-{place.replace('/', '-')[:30] or 'overview'}")


@pytest.mark.slow
def test_light_and_dark_follow_the_system_and_the_switch(house: House, visit: Open) -> None:
    filled(house)
    dark = visit(house.url, color_scheme="dark")
    back = "getComputedStyle(document.body).backgroundColor"
    page = dark.go("topics/orders")
    expect(rows(page).first).to_be_visible()
    night = page.evaluate(back)
    dark.shot("dark-topic")
    page.get_by_role("button", name="Light", exact=True).click()
    day = page.evaluate(back)
    assert (
        sum(map(int, re.findall(r"\d+", day)[:3]))
        > 600
        > 200
        > sum(map(int, re.findall(r"\d+", night)[:3]))
    )
    page.reload()
    expect(page.locator("main h1")).to_be_visible()
    assert page.evaluate(back) == day  # it was remembered
    page.get_by_role("button", name="Dark", exact=True).click()
    assert page.evaluate(back) == night
    for place in PLACES:
        dark.go(place)
        expect(page.locator("main h1")).to_be_visible()
        page.wait_for_timeout(250)
        dark.shot(f"dark-{place.replace('/', '-') or 'overview'}")


def test_everything_can_be_done_with_the_keyboard(house: House, visit: Open) -> None:
    house.append("t", "one", "two", "three")
    house.do("PUT", "/v1/queues/q", {})
    page = visit(house.url).go()
    expect(page.get_by_role("link", name="t", exact=True)).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_text("To the content")).to_be_focused()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "t":
            break
    ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert ring == "solid"  # one sees where one is
    page.keyboard.press("Enter")
    expect(rows(page)).to_have_count(3)
    page.keyboard.press("p")
    expect(page.get_by_role("button", name="Paused")).to_be_visible()
    rows(page).first.focus()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    drawer = page.get_by_label("Record", exact=True)
    expect(drawer).to_contain_text("two")
    page.keyboard.press("Escape")
    expect(drawer).to_have_count(0)
    page.keyboard.press("/")
    expect(page.get_by_label("Filter", exact=True)).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("pause or follow")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page.locator("main h1")).to_have_text("Queues")
    page.get_by_role("link", name="q", exact=True).focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Pause").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert house.do("GET", "/v1/queues/q")["paused"] is False
    house.do("POST", "/v1/queues/q/jobs", {"jobs": [{"value": "kept"}]})
    purge = page.get_by_role("button", name="Purge waiting")
    expect(purge).to_be_enabled()
    purge.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()  # a hasty Enter does no harm
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert house.do("GET", "/v1/queues/q")["ready"] == 1
    purge.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Ready").get_by_role("article")).to_have_count(0)
    assert house.do("GET", "/v1/queues/q")["ready"] == 0


NAMELESS = """
() => [...document.querySelectorAll('input, select, textarea, button, a')].filter(e =>
  !(e.labels && e.labels.length && e.labels[0].textContent.trim())
  && !e.getAttribute('aria-label') && !e.textContent.trim()).map(e => e.outerHTML)
"""


def test_every_field_and_button_has_a_name(house: House, visit: Open) -> None:
    filled(house)
    seen = visit(house.url)
    for place in PLACES:
        page = seen.go(place)
        expect(page.locator("main h1")).to_be_visible()
        page.wait_for_timeout(150)
        nameless = page.evaluate(NAMELESS)
        assert nameless == [], place


def test_a_server_that_goes_away_is_told_and_found_again(tmp_path: Path, visit: Open) -> None:
    with serving(tmp_path / "data", Settings(port=0)) as server:
        house = House(server)
        house.append("t", "before")
        port = int(server.url.rpartition(":")[2])
        seen = visit(server.url)
        seen.allowed = (
            "ERR_CONNECTION_REFUSED",
            "ERR_INCOMPLETE",
            "ERR_EMPTY",
            "ERR_CONNECTION_RESET",
            "503",
        )
        page = seen.go("topics/t")
        expect(rows(page)).to_have_count(1)
        house.client.close()
    expect(page.locator(".where-we-are")).to_contain_text("the connection is lost")
    with serving(tmp_path / "data", Settings(port=port)) as server:
        house = House(server)
        house.append("t", "after")
        expect(page.get_by_text("after", exact=True)).to_be_visible()
        expect(rows(page)).to_have_count(2)
        house.client.close()
