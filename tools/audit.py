"""Known vulnerabilities in what is locked: `make audit` asks, and so does a test.

pip-audit asks one of its services about every pin of requirements.lock, those of other platforms
too. This module is what it leaves to others: to go on where an index knows the latest versions
only, to give up on a service that does not answer, to tell what was *not* audited, and to ignore
what was looked at, until a day (audit.toml). By itself pip-audit calls it a success when not one
package could be audited.

    0   every package was audited, and no vulnerability is known
    1   a vulnerability is known that is not ignored
    2   audit.toml is not as it must be
    3   none is known, but not every package could be audited
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import requests
from packaging.version import Version
from pip_audit._service import (
    EcosystemsService,
    OsvService,
    PyPIService,
    ResolvedDependency,
    VulnerabilityResult,
    VulnerabilityService,
)
from pip_audit._service.interface import VulnerabilityID

from tools.lock import ROOT, Pin, read

CACHE = ROOT / ".cache" / "audit"  # pip's own may be turned off, and then cannot be asked for
IGNORED = Path(__file__).with_name("audit.toml")
IGNORED_MAX = timedelta(days=180)  # then somebody looks again
FAILURES_MAX = 3  # a service that failed so often is not asked any more
OF_A_VERSION = re.compile(r"(?P<project>.*)/(?P<version>[^/]+)/json")
NAMED_MAX = 20  # of packages, in a line


class Refused(Exception):
    """audit.toml is not as it must be."""


class Ignored(NamedTuple):
    id: str
    package: str
    until: date  # the first day on which it counts again
    reason: str


class Finding(NamedTuple):
    pin: Pin
    known: VulnerabilityResult

    def __str__(self) -> str:
        names = ", ".join([self.known.id, *sorted(self.known.aliases)])
        mended = " or ".join(str(each) for each in self.known.fix_versions) or "no version yet"
        return (
            f"{self.pin.name} {self.pin.version}: {names}: {self.known.description[:300]}"
            f" (mended in {mended})"
        )


class Audit(NamedTuple):
    answered: list[Pin]
    unanswered: dict[str, list[Pin]]  # by why
    found: list[Finding]


# --- what is ignored --------------------------------------------------------------------------


def ignored(text: str, today: date) -> list[Ignored]:
    """The entries of audit.toml, also those whose day has come."""
    entries = tomllib.loads(text).get("ignored", [])
    return [_ignored(entry, number, today) for number, entry in enumerate(entries, 1)]


def _ignored(entry: dict[str, Any], number: int, today: date) -> Ignored:
    where = f"{IGNORED.name}: entry {number}"
    if set(entry) != set(Ignored._fields):
        raise Refused(f"{where} needs these and no others: {', '.join(Ignored._fields)}")
    made = Ignored(**entry)
    if not isinstance(made.until, date) or isinstance(made.until, datetime):
        raise Refused(f"{where}: `until` is a day, like 2027-01-31, without quotes")
    if made.until > today + IGNORED_MAX:
        raise Refused(f"{where}: `until` is {made.until}; at most {IGNORED_MAX.days} days from now")
    if not isinstance(made.reason, str) or len(made.reason.split()) < 4:
        raise Refused(f"{where}: `reason` says why {made.id} does not concern us")
    return made


# --- asking -----------------------------------------------------------------------------------


def go_on_with_the_latest(session: requests.Session) -> None:
    """Where an index has no answer for a version, ask for the project.

    Mirrors often have the page of a project only. What it says of vulnerabilities is about the
    latest version, so it answers for a pin of that one and for no other.
    """

    def instead(response: requests.Response, **sent: Any) -> requests.Response:
        asked = OF_A_VERSION.fullmatch(response.url)
        if response.status_code != 404 or not asked:
            return response
        _ = response.content  # read to its end, so that its connection is free again
        latest = session.get(f"{asked['project']}/json", timeout=sent.get("timeout"))
        if latest.ok and latest.json()["info"]["version"] == asked["version"]:
            return latest
        return response

    session.hooks["response"].append(instead)


def audit(service: VulnerabilityService, pins: list[Pin], seconds: float) -> Audit:
    """Ask about all pins, some at a time, for so many seconds."""
    until = monotonic() + seconds
    failed: list[str] = []

    def ask(pin: Pin) -> list[VulnerabilityResult] | str:
        if len(failed) >= FAILURES_MAX:
            return f"not asked, because the service failed {FAILURES_MAX} times: {failed[0]}"
        if monotonic() > until:
            return f"not asked, because {seconds:g} seconds were over"
        try:
            answer, known = service.query(ResolvedDependency(pin.name, Version(pin.version)))
        except Exception as error:  # whatever it is that comes instead of an answer
            failed.append(f"{type(error).__name__}: {str(error) or error.__cause__}"[:160])
            return failed[-1]
        return "the service does not know this version" if answer.is_skipped() else known

    made = Audit([], {}, [])
    with ThreadPoolExecutor(8) as pool:
        for pin, answer in zip(pins, pool.map(ask, pins), strict=True):
            if isinstance(answer, str):
                made.unanswered.setdefault(answer, []).append(pin)
            else:
                made.answered.append(pin)
                made.found.extend(Finding(pin, each) for each in answer)
    return made


# --- what is told -----------------------------------------------------------------------------


def told(made: Audit, entries: list[Ignored], today: date) -> tuple[int, list[str]]:
    """The exit code, and what to say."""
    lines: list[str] = []
    counted, used = 0, set()
    for finding in made.found:
        entry = next((each for each in entries if _concerns(each, finding)), None)
        used.add(entry)
        if entry and today < entry.until:
            lines.append(f"ignored until {entry.until}, {entry.reason}: {finding}")
        else:
            counted += 1
            again = f"; it was ignored until {entry.until}, look at it again" if entry else ""
            lines.append(f"VULNERABLE: {finding}{again}")
    for why, pins in made.unanswered.items():
        names = ", ".join(f"{pin.name} {pin.version}" for pin in pins[:NAMED_MAX])
        more = f" and {len(pins) - NAMED_MAX} more" if len(pins) > NAMED_MAX else ""
        lines.append(f"NOT AUDITED, {why}: {names}{more}")
    answered = {pin.name for pin in made.answered}
    unused = [entry for entry in entries if entry not in used and entry.package in answered]
    lines += [f"{entry.id} of {entry.package} need not be ignored any more" for entry in unused]
    if counted:
        lines.append(f"to mend: make lock UPGRADE=NAME; or say in {IGNORED.name} why it may stay")
    asked = len(made.answered) + sum(map(len, made.unanswered.values()))
    first = f"{len(made.answered)} of {asked} packages audited"
    if made.answered:
        first += f", {counted or 'no'} vulnerabilit{'y' if counted == 1 else 'ies'} known of them"
    return (1 if counted else 3 if made.unanswered else 0), [first, *lines]


def _concerns(entry: Ignored, finding: Finding) -> bool:
    return entry.package == finding.pin.name and finding.known.has_any_id(
        {VulnerabilityID(entry.id)}
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.audit", description=__doc__)
    parser.add_argument("--service", choices=("pypi", "osv", "esms"), default="pypi")
    parser.add_argument("--osv-url", default=OsvService.DEFAULT_OSV_URL)
    parser.add_argument("--timeout", type=int, default=5, help="seconds for one answer to begin")
    parser.add_argument("--seconds", type=float, default=60, help="seconds for all of it")
    given = parser.parse_args(arguments)

    service: VulnerabilityService
    if given.service == "osv":
        service = OsvService(CACHE, timeout=given.timeout, osv_url=given.osv_url)
    elif given.service == "esms":
        service = EcosystemsService(CACHE, timeout=given.timeout)
    else:
        service = PyPIService(CACHE, timeout=given.timeout)
        go_on_with_the_latest(service.session)

    today = datetime.now(UTC).date()
    try:
        entries = ignored(IGNORED.read_text(encoding="utf-8"), today)
    except (Refused, tomllib.TOMLDecodeError) as error:
        print(f"audit: {error}", file=sys.stderr)
        return 2
    code, lines = told(audit(service, read(), given.seconds), entries, today)
    print("\n".join(f"audit: {line}" for line in lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
