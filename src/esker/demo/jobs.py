"""The checker's part that looks at the queue: jobs that were put, held, done, and given up."""

from __future__ import annotations

from collections import Counter

from esker.demo import goods, notes
from esker.demo.evidence import Claim, Values
from esker.demo.goods import TRIES


class Jobs:
    """What the lists say of the jobs: each by its id."""

    def __init__(self, folder: str) -> None:
        self.put = {each for _, words in notes.all_lines(folder, "puts") for each in words}
        self.claimed: dict[str, list[tuple[str, int]]] = {}  # by which list, which delivery
        self.done: dict[str, list[tuple[str, int]]] = {}
        self.failed: dict[str, list[tuple[str, int]]] = {}
        kinds = {"claim": self.claimed, "done": self.done, "fail": self.failed}
        for name, (kind, job, delivery) in notes.all_lines(folder, "work"):
            kinds[kind].setdefault(job, []).append((name, int(delivery)))
        self.killed = {
            words[2] for _, words in notes.all_lines(folder, "kills") if words[0] == "worker"
        }

    def held(self) -> set[str]:
        """Jobs that a worker had in its hands when it was killed."""
        return {
            job
            for job, claims in self.claimed.items()
            for name, delivery in claims
            if name in self.killed
            and (name, delivery) not in self.done.get(job, [])
            and (name, delivery) not in self.failed.get(job, [])
        }

    @property
    def redelivered(self) -> int:
        """How often a job was handed out again."""
        return sum(len(claims) - 1 for claims in self.claimed.values())


def worked(jobs: Jobs, dead: Counter[str]) -> list[Claim]:
    """Nothing that was put is forgotten, and nothing that was done comes again."""
    undone = jobs.put - jobs.done.keys() - dead.keys()
    again = sum(
        any(delivery > min(d for _, d in jobs.done[job]) for _, delivery in claims)
        for job, claims in jobs.claimed.items()
        if job in jobs.done
    )
    twice = sum(len(lines) > 1 for lines in jobs.done.values())
    held = jobs.held()
    by_others = {
        job
        for job in held
        if dead[job] or any(name not in jobs.killed for name, _ in jobs.done.get(job, []))
    }
    return [
        Claim(
            "jobs forgotten",
            "0",
            f"{len(undone):,} of {len(jobs.put):,} that were put are neither done nor dead; "
            f"{again + twice:,} came again after they were done",
            not undone and not again and not twice and bool(jobs.put),
        ),
        Claim(
            "jobs of the killed worker",
            "all taken over",
            f"{len(by_others):,} of {len(held):,} that it held were done by others",
            by_others == held and (bool(held) or not jobs.killed),
        ),
    ]


def dead_letters(values: dict[int, Values]) -> tuple[Counter[str], int]:
    """How often each job is among the dead, and how many there are that nobody made."""
    found: Counter[str] = Counter()
    wrong = 0
    for shard in values.values():
        for value in shard.values():
            said = goods.maker(value)
            if said is None:
                continue  # a stranger
            wrong += said.kind != "email" or not goods.authentic(value, said)
            found[f"{said.run}-{said.thread}-{said.number}"] += 1
    return found, wrong


def poisoned(jobs: Jobs, dead: Counter[str], wrong: int) -> Claim:
    """What cannot be done is tried as often as was asked, then set aside, and nothing else is.

    A letter that somebody puts back into the queue is tried anew, and dies anew.
    """
    poison = {
        job for job in jobs.put | jobs.claimed.keys() if job.split("-")[2] == str(goods.POISON)
    }
    tries_wrong = sum(
        len(jobs.claimed.get(job, [])) != TRIES * copies for job, copies in dead.items()
    )
    return Claim(
        "dead letters",
        "the poison jobs, each once",
        f"{len(poison):,} cannot be sent: {len(poison - dead.keys()):,} missing, "
        f"{len(dead.keys() - poison) + wrong:,} that should not be there, "
        f"{tries_wrong:,} not after {TRIES} tries",
        poison == dead.keys() and not wrong and not tries_wrong and bool(poison),
    )
