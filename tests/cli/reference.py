"""The reference of the command line, made of the parser: the last part of docs/cli.md.

.venv/bin/python -m tests.cli.reference     writes it anew
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cyclopts import App

from esker.cli.tree import app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
BEGIN = "## Every command\n"
_COMMON = {"--data", "--url", "--profile", "--output", "--json"}


def commands(of: App = app, chain: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    """Every command that does something, with the words that lead to it."""
    for name in of:
        if name.startswith("-") or (not chain and name == "key"):
            continue
        below = of[name]
        if below.default_command is not None:
            yield (*chain, name), below
        yield from commands(below, (*chain, name))


def rendered() -> str:
    """All of it, as Markdown."""
    parts = [BEGIN]
    for chain, command in commands():
        parts += [f"\n### esker {' '.join(chain)}\n", "\n" + _text(command) + "\n"]
        if chain == ("spark",):
            continue
        rows = list(_rows(command))
        if rows:
            parts += ["\n| | |\n|---|---|\n", *rows]
    return "".join(parts)


def _text(command: App) -> str:
    text = (command.default_command.__doc__ or "").partition("Parameters\n")[0]  # type: ignore[union-attr]
    return " ".join(text.split())


def _rows(command: App) -> Iterator[str]:
    for argument in command.assemble_argument_collection(parse_docstring=True):
        if not argument.show:
            continue
        names = [name for name in argument.names if not name.startswith("--no-")] or argument.names
        if _COMMON & set(names) and argument.parameter.group[0].name in ("Which store", "Output"):  # type: ignore[index,union-attr]
            continue
        called = ", ".join(f"`{name}`" for name in names)
        told = " ".join((argument.parameter.help or "").split()).replace("|", "\\|")
        yield f"| {called} | {told} |\n"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text[: text.index(BEGIN)] + rendered(), encoding="utf-8")
