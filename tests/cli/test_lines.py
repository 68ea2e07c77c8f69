"""The command line itself: help, mistakes, which store is meant, completion, configuration."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from cyclopts import App
from rich.console import Console

import esker
from esker.cli import look, serve, top
from esker.cli.shown import fitting, safe, seconds
from esker.cli.tree import app
from esker.server.settings import Settings
from tests.cli.conftest import Run
from tests.cli.reference import BEGIN, PAGE, rendered


def commands(of: App = app, chain: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command, with those below it."""
    for name in of:
        if not name.startswith("-"):
            yield (*chain, name)
            yield from commands(of[name], (*chain, name))


COMMANDS = list(commands())


def found(chain: tuple[str, ...]) -> App:
    below = app
    for name in chain:
        below = below[name]
    return below


@pytest.mark.parametrize("chain", COMMANDS, ids=" ".join)
def test_every_command_and_option_has_help(esker_: Run, chain: tuple[str, ...]) -> None:
    done = esker_(*chain, "--help")
    assert done.code == 0
    assert f"sage: esker {' '.join(chain)}" in done.text
    if chain in (("spark",), ("serve",)) or found(chain).default_command is None:
        return  # Spark's jobs and the server's settings have pages of their own
    for argument in found(chain).assemble_argument_collection(parse_docstring=True):
        if argument.show:
            assert (argument.parameter.help or "").strip(), argument.name


def test_help_lists_every_command(esker_: Run) -> None:
    text = esker_("--help").text
    for chain in COMMANDS:
        if len(chain) == 1 and chain[0] != "key":
            assert f" {chain[0]} " in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["fly"], "no command 'fly'"),
        (["raed"], "did you mean 'read'?"),
        (["queue", "ded"], "did you mean 'dead'?"),
        (["read"], "TOPIC"),
        (["read", "t", "--dta", "x"], "Did you mean --data?"),
        (["read", "t", "-n", "-3"], "--limit -3"),
        (["read", "t", "-n", "x"], "-n"),
        (["read", "t", "-o", "xml"], "xml"),
        (["read", "t", "-o", "raw", "--json"], "exclude each other"),
        (["read", "t", "-f", "--json"], "-f has none"),
        (["read", "t", "--format", "{offset", "--data", "x"], "--format"),
        (["ls", "--data", "a", "--url", "http://b"], "exclude each other"),
    ],
)
def test_a_command_line_that_makes_no_sense_exits_with_2(
    esker_: Run, arguments: list[str], told: str
) -> None:
    Path("x").mkdir()
    with esker.open("x") as store:
        store["t"].append(b"1")
    done = esker_(*arguments)
    assert (done.code, done.out) == (2, b"")
    assert done.err.startswith("esker: usage: ")
    assert told in done.err
    assert done.err.count("\n") == 1


def test_nothing_at_all_shows_the_help_and_exits_with_2(esker_: Run) -> None:
    done = esker_()
    assert done.code == 2
    assert "Usage: esker" in done.text


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["verify", "nowhere"], "not_a_store"),
        (["ls", "--data", "nowhere"], "not_a_store"),
        (["rm", "t", "--yes", "--data", "nowhere"], "not_a_store"),
        (["append", "no/name", "x"], "invalid_name"),
        (["ls", "--url", "http://127.0.0.1:9"], "unavailable"),
        (["ls", "--url", "localhost"], "invalid_option"),
        (["ls", "--data", "http://localhost:4117"], "invalid_option"),
        (["ls", "--profile", "nobody"], "invalid_option"),
        (["keys", "ls"], "invalid_option"),
    ],
)
def test_an_error_is_one_line_with_its_code(esker_: Run, arguments: list[str], code: str) -> None:
    done = esker_(*arguments)
    assert (done.code, done.out) == (1, b"")
    assert done.err.startswith(f"esker: {code}: ")
    assert done.err.count("\n") == 1
    assert not Path("nowhere").exists()


# ---- which store -----------------------------------------------------------------------------


def store_with(path: str, topic: str) -> None:
    with esker.open(path) as store:
        store[topic].append(b"x")


def test_a_flag_counts_before_the_environment_before_a_profile_before_the_default(
    esker_: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("flag", "environment", "other", "profile", "data"):
        store_with(name, f"of.{name}")

    def seen(*more: str) -> str:
        (row,) = esker_("ls", *more).lines
        return str(row["topic"])

    assert seen() == "of.data"
    Path("esker.toml").write_text(
        'port = 4118\n[profile.default]\ndata = "profile"\n[profile.other]\ndata = "other"\n'
    )
    assert seen() == "of.profile"
    monkeypatch.setenv("ESKER_PROFILE", "other")
    assert seen() == "of.other"
    monkeypatch.setenv("ESKER_DATA", "environment")
    assert seen() == "of.environment"
    assert seen("--profile", "other") == "of.other"
    assert seen("--data", "flag") == "of.flag"
    monkeypatch.setenv("ESKER_URL", "http://localhost:1")
    assert esker_("ls").code == 1
    shown = esker_("config", "show", "--data", "flag", "-o", "table").text
    assert "--data" in shown
    assert "esker.toml" in shown  # where port came from
    assert "profile.other" in shown


def test_a_working_directory_that_is_a_store_is_the_store(
    esker_: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_with("shop", "orders")
    monkeypatch.chdir("shop")
    assert esker_("ls").lines[0]["topic"] == "orders"


def test_a_profile_is_checked(esker_: Run) -> None:
    for text in ('[profile.x]\nurl = "http://a"\ndata = "b"', "[profile.x]\ndta = 'b'",
                 "profile = 3", "[profile.x]\ndata = 3"):  # fmt: skip
        Path("esker.toml").write_text(text)
        done = esker_("ls", "--profile", "x")
        assert done.code == 1
        assert "esker: invalid_option: " in done.err


def test_a_server_may_have_its_settings_in_a_file_with_profiles(esker_: Run) -> None:
    Path("esker.toml").write_text('port = 4118\n[profile.x]\ndata = "y"\n')
    assert "4118  (esker.toml)" in esker_("serve", "--show-settings").text


def test_a_secret_is_not_shown(esker_: Run) -> None:
    Path("esker.toml").write_text('[profile.x]\nurl = "http://h:1"\nkey = "esk_secret"\n')
    shown = esker_("config", "show", "--profile", "x").text
    assert "(set)" in shown
    assert "esk_secret" not in shown


# ---- the rest --------------------------------------------------------------------------------


def test_keys_are_made_listed_revoked_and_forgotten_under_both_names(esker_: Run) -> None:
    made = esker_("keys", "new", "--scopes", "read,write", "--prefix", "orders", "--name", "shop")
    assert made.text.startswith("esk_")
    assert "only time" in made.err
    (row,) = esker_("key", "ls").lines
    assert (row["name"], row["scopes"], row["state"]) == ("shop", ["read", "write"], "good")
    assert esker_("keys", "revoke", made.text.strip()).code == 1
    assert esker_("keys", "revoke", row["id"]).json["state"] == "revoked"
    assert esker_("keys", "forget", row["id"]).code == 0
    assert esker_("keys", "ls").out == b""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_completion_that_knows_the_commands(esker_: Run, shell: str) -> None:
    text = esker_("completion", shell).text
    for word in ("append", "requeue", "--durability", "ndjson"):
        assert word in text.replace("\\", "")


def test_what_the_cheat_sheet_says_can_be_understood(esker_: Run) -> None:
    lines = [line for line in esker_("cheat").text.splitlines() if line.startswith("esker ")]
    assert len(lines) > 20
    import shlex

    for line in lines:
        words = shlex.split(line.partition(" < ")[0])[1:]
        app.parse_args(words, exit_on_error=False, print_error=False)


def test_text_is_made_safe_and_times_are_short() -> None:
    assert safe("a\x1b[0m\u202eb\n") == "a\\x1b[0m\\u202eb\\n"
    assert [seconds(each) for each in (None, 0, 0.5, 3, 600, 20_000, 400_000)] == [
        "-", "0 s", "500 ms", "3.0 s", "10 min", "6 h", "5 d",
    ]  # fmt: skip


def test_the_page_has_every_command_and_option_as_the_parser_has_them() -> None:
    text = PAGE.read_text(encoding="utf-8")
    again = "run .venv/bin/python -m tests.cli.reference"
    assert text[text.index(BEGIN) :] == rendered(), again


def test_what_all_commands_have_is_explained_above_the_list() -> None:
    text = PAGE.read_text(encoding="utf-8").partition(BEGIN)[0]
    for word in ("--data", "--url", "--profile", "--json", "-o", "ESKER_DATA", "NO_COLOR", "130"):
        assert word in text


def test_an_option_before_the_command_is_told_where_it_stands(esker_: Run) -> None:
    found = esker_("--data", "shop", "ls")
    assert found.code == 2
    assert "--data stands behind the command, as in `esker ls --data …`. See" in found.err


def test_a_file_is_no_store_and_is_called_a_file(esker_: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for given in (("ls", "--data", "file"), ("append", "t", "x", "--data", "file"),
                  ("verify", "file"), ("du", "file"), ("serve", "file", "--port", "0"),
                  ("backup", "b", "--data", "file")):  # fmt: skip
        found = esker_(*given)
        assert (found.code, "is not a directory" in found.err) == (1, True), found.err


def test_every_setting_of_the_server_is_told_in_its_help(esker_: Run) -> None:
    told = esker_("serve", "--help").text
    for field in msgspec.structs.fields(Settings):
        assert serve._TOLD[field.name][:20] in " ".join(told.split()), field.name


def test_a_field_of_a_value_is_called_as_filters_do(esker_: Run) -> None:
    esker_("append", "t", "x")
    found = esker_("read", "t", "--where", "value.total > 3")
    assert "a field of a JSON value is json.total" in found.err


def test_columns_of_names_give_way_so_that_all_numbers_are_seen() -> None:
    lines = [["TOPIC", "N", "WHERE"], ["x" * 60, "12,345", "y" * 10]]
    assert fitting(lines, [True, False, True], 200) == [60, 6, 10]
    assert fitting(lines, [True, False, True], 60) == [36, 6, 10]  # 3 between two, 1 at the ends
    assert fitting(lines, [True, False, True], 40) == [16, 6, 10]
    assert fitting(lines, [True, False, True], 10) == [8, 6, 8]


def test_a_table_has_all_its_columns_whatever_names_there_are(esker_: Run) -> None:
    esker_("append", "a.name." * 17, "x")
    for given in (("ls",), ("du",), ("info",), ("top", "--rounds", "1", "--interval", "0.2")):
        told = esker_(*given, *(() if given[0] == "top" else ("-o", "table"))).text
        assert max(map(len, told.splitlines())) <= 130  # the path of the store may be long
        assert "a.name.a" in told
        assert "…" in told
        assert any(title in told for title in ("CLASS", "COLD\n", "COLD ", "BYTES/S")), told


def test_a_low_terminal_shows_the_topics_to_which_most_is_written(esker_: Run) -> None:
    def seen(written: int) -> top.Seen:
        topics = [look.TopicRow(f"t{n}", 1, 1, "disk", 1, 1, False) for n in range(50)]
        return top.Seen(float(written), topics, [], [],
                        {f"t{n}": (n * written, 0) for n in range(50)}, {})  # fmt: skip

    out = Console(width=80, file=io.StringIO())
    out.print(top.view("data", seen(0), seen(1), 80, 24))
    told = out.file.getvalue().splitlines()
    assert len(told) == 24
    assert told[3].split()[0] == "t49"
    assert told[-1].strip() == "and 30 topics more"


def test_a_server_that_cannot_listen_says_where_and_what_to_do(esker_: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = esker_("serve", "data", "--port", port)
    assert found.code == 1
    assert found.err == (
        f"esker: invalid_option: cannot listen on 127.0.0.1:{port}: Address already in use; choose "
        "another one with --port, or 0 for any that is free\n"
    )
    assert "must lie in 0..65535" in esker_("serve", "data", "--port", "99999").err
    found = esker_("serve", "data", "--unix", "nowhere/x.sock")
    assert (found.code, "No such file or directory; choose another place" in found.err) == (1, True)
