"""`esker spark`: a command line made of the jobs' signatures."""

from __future__ import annotations

from typing import Any

import pytest

from esker.cli.spark import described, parser
from esker.spark.jobs import JOBS


def job(
    spark: Any, store: str, topic: str, *, to: str | None = None, tidy: bool = True,
    target_bytes: int = 5, rate: float = 0.5, count: int = 3, progress: Any = None,
) -> None:  # fmt: skip
    """Does this and
    that.

        store          where
        topic          which,
            and why
        to             another
        tidy           100 % clean
        target_bytes   how large
        rate           how fast
        count          how many

    More is not said.
    """


def test_parameters_become_arguments_and_options() -> None:
    made = parser({"job": job})
    found = vars(made.parse_args(["job", "data", "orders"]))
    assert found["job"] is job
    assert (found["store"], found["topic"], found["to"]) == ("data", "orders", None)
    assert (found["tidy"], found["target_bytes"], found["rate"], found["count"]) == (
        True,
        5,
        0.5,
        3,
    )
    text = "job data t --to x --no-tidy --target-bytes 1.5MiB --rate 2 --count 7 --json"
    found = vars(made.parse_args(text.split()))
    assert (found["to"], found["tidy"], found["json"]) == ("x", False, True)
    assert (found["target_bytes"], found["rate"], found["count"]) == (1_572_864, 2.0, 7)


@pytest.mark.parametrize(
    ("text", "size"), [("7", 7), ("7B", 7), ("2KB", 2000), ("2K", 2000), ("1GiB", 1 << 30)]
)
def test_a_size_may_have_a_unit(text: str, size: int) -> None:
    found = parser({"job": job}).parse_args(["job", "d", "t", "--target-bytes", text])
    assert found.target_bytes == size


@pytest.mark.parametrize("text", ["", "x", "5XB", "5 i", "-3"])
def test_what_is_no_size_is_told(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser({"job": job}).parse_args(["job", "d", "t", f"--target-bytes={text}"])
    assert "is not a size; as in 64MiB" in capsys.readouterr().err


def test_help_is_what_the_docstring_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert described(job)["topic"] == "which, and why"
    with pytest.raises(SystemExit):
        parser({"job": job}).parse_args(["job", "--help"])
    told = capsys.readouterr().out
    assert "Does this and that." in told
    assert "100 % clean" in told
    assert "progress" not in told


@pytest.mark.parametrize("name", JOBS)
def test_every_job_explains_all_that_it_takes(name: str) -> None:
    parser({name: JOBS[name]})  # a parameter that the docstring does not name is a KeyError
