"""The architecture, checked.

The package is a stack of rooms. A room may use the rooms below it and nothing else, and each of
the outside world's sharp edges (files, clock, threads, event loop) comes in by one door. This file
reads the source as syntax trees, so an import hidden in a function counts like any other.

To let a module through a door, add it to DOORS with the reason. The planted violations at the end
prove that the checker still bites.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.zoo.mutants import mutants

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "esker"
LINES_MAX = 700  # a smell, not a law: past it, look for the second module inside
LINES_MAX_AROUND = 1_120  # a file of tests is a list, and is read by searching

LAYERS = (
    {"cli"},
    {"demo"},
    {"server", "spark"},
    {"aio", "console"},
    {"client"},
    {"routes", "scheduler"},
    {"groups", "queues", "upkeep", "kin"},
    {"engine"},
    {"storage", "filters"},
    {"format"},
    {"records", "options"},
    {"positions"},
    {"errors", "clock", "version"},
)
DEPTH = {room: depth for depth, rooms in enumerate(LAYERS) for room in rooms}
FRONT = {"__init__", "__main__"}  # the public names: may import every room
TESTING = "testing"  # shipped doubles: may import every room, and no room imports them

FILES = "storage/files.py"
_FILES_ONLY = {FILES: "the only door to the file system"}
# Files, but none of a store: which Java there is, and what is kept in the user's cache directory.
_OF_SPARK = {
    "spark/java.py": "looks for a Java",
    "spark/cache.py": "what starting Spark keeps for the next time",
}
_CLOCK_ONLY = {"clock.py": "the only door to the time of day"}
_THREADS = {
    "engine": "the shell around the synchronous core: committer, sealer, retention",
    "groups": "a handle may be polled on one thread and acked on others",
    "routes": "one thread forwards for all routes of a store",
    "aio": "the bridge from an event loop to the engine",
    "server/run.py": "a server in a thread of a program",
    "client": "threads share the connections of a store",
    "queues/lane.py": "threads of a worker share the leases of a shard",
    "queues/crew.py": "and one lock that says that it lives",
    "queues/cohort.py": "threads that claim together are served together",
    "queues/opening.py": "a queue is opened once for each store",
    "queues/queue.py": "who waits for a job is woken by who puts one",
    "queues/work.py": "handlers in threads, and one that renews their leases",
    "storage/maps.py": "readers on many threads share the mapped segments",
    "demo": "the demo writes from several threads, as a user would; its children watch their stdin",
}

# What may be used where: a name from outside, and the rooms or files it may be used in.
DOORS: dict[str, dict[str, str]] = {
    "asyncio": {"aio": "the async API", "server": "the event loop's home"},
    "pyspark": {"spark": "the data source"},
    "mmap": {"storage": "sealed segments and shared pages are mapped"},
    "fcntl": {"storage": "one writer per shard, by a kernel lock"},
    "threading": _THREADS,
    "_thread": _THREADS,
    "concurrent.futures": _THREADS,
    "time": {
        **_CLOCK_ONLY,
        FILES: "file times",
        # A module of the engine's shell that must sleep or time itself goes here, with its reason.
        "engine/background.py": "rests between unlinks that nobody waits for",
        "engine/committer.py": "the leader of a round sleeps in slices while it waits for company",
        "cli/top.py": "sleeps between two looks",
    },
    "datetime.datetime.now": _CLOCK_ONLY,
    "datetime.datetime.utcnow": _CLOCK_ONLY,
    "datetime.datetime.today": _CLOCK_ONLY,
    "datetime.date.today": _CLOCK_ONLY,
    "os": {  # but see OS_HARMLESS
        **_FILES_ONLY,
        "server/http/listen.py": "a socket in the file system is no file of a store",
    },
    "subprocess": {
        "demo": "it kills its own processes",
        "cli/queues.py": "`queue claim --exec` runs the user's command",
        "spark/java.py": "asks each Java what it is",
        "spark/session.py": "waits for the end of Spark's JVM",
    },
    "io.open": _FILES_ONLY,
    "io.FileIO": _FILES_ONLY,
    "builtins.open": _FILES_ONLY,
    "fileinput": _FILES_ONLY,
    "glob": _FILES_ONLY,
    "shutil": {
        **_FILES_ONLY,
        **_OF_SPARK,
        "demo": "what a former run left is removed",
        "cli": "the width of the terminal, the room on a disk",
    },
    "tempfile": {
        **_FILES_ONLY,
        "spark/cache.py": "a directory that is not complete has another name",
        "demo": "what a child says on stderr",
        "cli/bench.py": "a store to measure with",
    },
    "pyarrow.fs": {
        "storage/objects.py": "the door to object stores",
        "storage/cold.py": "lists what lies in one",
    },
    "pyarrow.OSFile": _FILES_ONLY,
    "pyarrow.input_stream": _FILES_ONLY,
    "pyarrow.output_stream": _FILES_ONLY,
    "pyarrow.memory_map": _FILES_ONLY,
    "pyarrow.create_memory_map": _FILES_ONLY,
    "builtins.print": {"cli": "the one room that talks to a terminal"},
}

# What `os` has that touches no file.
OS_HARMLESS = {
    f"os.{name}"
    for name in (
        "PathLike", "fspath", "fsdecode", "fsencode", "sep", "linesep", "strerror", "environ",
        "getpid", "getppid", "kill", "waitpid", "_exit", "register_at_fork", "urandom",
        "cpu_count", "process_cpu_count", "sched_getaffinity", "get_terminal_size",
        "path.join", "path.basename", "path.dirname", "path.split", "path.splitext",
        "path.normpath", "path.isabs", "path.commonpath",
    )
}  # fmt: skip

# Nowhere, whatever the reason: these turn bytes from a disk or a wire into running code. The later
# ones pickle what they are given, or run a module by its name.
FORBIDDEN = {
    "pickle", "_pickle", "marshal", "shelve", "yaml", "dill", "cloudpickle", "jsonpickle", "joblib",
    "read_pickle", "to_pickle", "CPickleSerializer", "CloudPickleSerializer", "PyExtensionType",
    "multiprocessing", "runpy",
}  # fmt: skip
FORBIDDEN_BUILTINS = {"eval", "exec", "compile"}
# A shell reads its command as code. Whose command that is, and why no data can be part of it:
SHELLS = {"cli/queues.py": "the user's: `queue claim --exec`; what a job holds is its stdin"}
SHELL_CALLS = {
    "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput",
    "asyncio.create_subprocess_shell", "asyncio.subprocess.create_subprocess_shell",
}  # fmt: skip
STARTS = {"run", "Popen", "call", "check_call", "check_output"}  # of subprocess

# An upward import for the type checker alone never runs. It is still a smell, so each has a reason.
FOR_TYPES_ONLY = {
    ("errors.py", "records"): "an error about a Gap carries the Gap",
    ("engine/verbs.py", "groups"): "a topic has groups, which are built above it",
    ("engine/verbs.py", "queues"): "store.queue gives a Queue",
    ("engine/verbs.py", "routes"): "a store has routes, which are built above it",
}

# Methods of pathlib.Path that reach the disk.
PATH_CALLS = {
    "chmod", "exists", "glob", "hardlink_to", "is_dir", "is_file", "is_symlink", "iterdir", "lstat",
    "mkdir", "open", "owner", "read_bytes", "read_text", "readlink", "rename", "replace", "resolve",
    "rglob", "rmdir", "samefile", "stat", "symlink_to", "touch", "unlink", "walk", "write_bytes",
    "write_text",
}  # fmt: skip
# The same, recognisable by name and number of arguments even when the receiver is a mystery.
PATH_CALLS_BY_SHAPE = {("iterdir", 0), ("read_text", 0), ("write_text", 1)}
PATHS_FROM_PATHS = {"absolute", "expanduser", "joinpath", "relative_to", "with_name", "with_suffix"}


class Module(NamedTuple):
    path: str  # relative to the package, with forward slashes
    room: str
    text: str
    tree: ast.Module


class Use(NamedTuple):
    """A dotted name from outside the module, by import or by use of what was imported."""

    name: str
    line: int
    for_types_only: bool = False


def modules(package: Path) -> list[Module]:
    found = []
    for file in sorted(package.rglob("*.py")):
        path = file.relative_to(package).as_posix()
        text = file.read_text(encoding="utf-8")
        found.append(Module(path, path.split("/")[0].removesuffix(".py"), text, ast.parse(text)))
    return found


def imports_of(tree: ast.Module) -> Iterator[Use]:
    """Every import, wherever it hides: `from a import b` is a.b, `from . import b` is .b."""
    for_types_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for statement in branch.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (f"{node.module}." if node.module else "")
            names = [source + alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and _is_import_call(node.func):
            argument = node.args[0] if node.args else None
            known = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            names = [argument.value if known else "a computed name"]
        else:
            continue
        for name in names:
            yield Use(name, node.lineno, id(node) in for_types_only)


def _is_import_call(func: ast.expr) -> bool:
    return ast.unparse(func) in {"__import__", "import_module", "importlib.import_module"}


def uses_of(tree: ast.Module) -> Iterator[Use]:
    """Every `a.b.c` whose `a` was imported, spelt in full, and every builtin of interest."""
    meaning = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                meaning[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                meaning[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for builtin in {"open", "print", *FORBIDDEN_BUILTINS} - own - meaning.keys():
        meaning[builtin] = f"builtins.{builtin}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            root, *rest = _chain(node)
            if root in meaning:
                yield Use(".".join([meaning[root], *rest]), node.lineno)


def _chain(node: ast.expr) -> list[str]:
    """`a.b.c` as a list; anything but a plain name at its root becomes an empty string."""
    if isinstance(node, ast.Attribute):
        return [*_chain(node.value), node.attr]
    return [node.id] if isinstance(node, ast.Name) else [""]


def shells_of(tree: ast.Module) -> Iterator[int]:
    """Lines of calls that start a program with `shell=` anything but False."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            starts = _chain(node.func)[-1] in STARTS
            for word in node.keywords:
                known = word.value.value if isinstance(word.value, ast.Constant) else starts
                if word.arg == "shell" and known:
                    yield node.lineno


def path_calls_of(tree: ast.Module) -> Iterator[Use]:
    """Calls of pathlib's I/O methods, on whatever this module itself shows to be a Path."""
    known = {
        node.arg if isinstance(node, ast.arg) else _chain(node.target)[-1]
        for node in ast.walk(tree)
        if isinstance(node, ast.arg | ast.AnnAssign)
        and node.annotation is not None
        and re.search(r"\bPath\b", ast.unparse(node.annotation))
    }

    def is_path(node: ast.expr) -> bool:
        match node:
            case ast.Name() | ast.Attribute() if _chain(node)[-1] in known:
                return True
            case ast.Attribute(attr="parent"):
                return is_path(node.value)
            case ast.BinOp(op=ast.Div()):
                return is_path(node.left)
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in PATHS_FROM_PATHS:
                return is_path(value)
            case ast.Call():
                return re.fullmatch(r"(pathlib\.)?Path(\.cwd|\.home)?", ast.unparse(node.func))
        return False

    for _ in range(2):  # twice, for a name assigned from a name that is assigned further down
        known |= {
            _chain(target)[-1]
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and is_path(node.value)
            for target in node.targets
        } - {""}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method = node.func.attr
            by_shape = (method, len(node.args)) in PATH_CALLS_BY_SHAPE
            if by_shape or (method in PATH_CALLS and is_path(node.func.value)):
                yield Use(f"Path.{method}", node.lineno)


def violations(package: Path) -> list[str]:
    found = []
    for module in modules(package):
        where = f"{package.name}/{module.path}"
        imports = list(imports_of(module.tree))
        complaints = [
            *_unfit_room(module),
            *_unfit_imports(module, package.name, imports),
            *_unfit_uses(module, [*imports, *uses_of(module.tree)]),
        ]
        if module.path not in SHELLS:
            complaints += [
                (line, "a shell is forbidden everywhere: give a list")
                for line in shells_of(module.tree)
            ]
        if module.path not in {FILES, *_OF_SPARK} and module.room != TESTING:
            complaints += [
                (use.line, f"{use.name}() belongs in {FILES}") for use in path_calls_of(module.tree)
            ]
        found += [f"{where}:{line}: {text}" for line, text in sorted(set(complaints))]
    return found


def _unfit_room(module: Module, lines_max: int = LINES_MAX) -> Iterator[tuple[int, str]]:
    if module.room not in {*DEPTH, *FRONT, TESTING}:
        yield 1, f"the room {module.room!r} has no place in LAYERS"
    if not ast.get_docstring(module.tree):
        yield 1, "no docstring: say what this module is for"
    if (count := len(module.text.splitlines())) > lines_max:
        yield lines_max, f"{count} lines: there is a second module in here"


def _unfit_imports(module: Module, package: str, imports: list[Use]) -> Iterator[tuple[int, str]]:
    room = module.room
    for use in imports:
        if use.name.startswith("."):
            yield use.line, f"relative import of {use.name}"
        if use.name == "a computed name" and room not in {*FRONT, TESTING}:
            yield use.line, "import of a computed name hides a dependency"
        if use.name.split(".")[0] != package:
            continue
        target = [*use.name.split("."), ""][1]
        if target == TESTING and room != TESTING:
            yield use.line, f"{room} imports {TESTING}, which is for tests"
        elif room in {*FRONT, TESTING} or target == room:
            continue
        elif target not in DEPTH:
            if room not in {"cli", "demo"}:
                yield use.line, f"{room} imports the front door ({use.name}): name the room instead"
        elif use.for_types_only and (module.path, target) in FOR_TYPES_ONLY:
            continue
        elif room in DEPTH and DEPTH[target] <= DEPTH[room]:
            way = "upward" if DEPTH[target] < DEPTH[room] else "sideways"
            yield use.line, f"{way} import: {room} -> {target}"


def _unfit_uses(module: Module, uses: list[Use]) -> Iterator[tuple[int, str]]:
    for use in uses:
        for word in FORBIDDEN.intersection(use.name.split(".")):
            yield use.line, f"{word} is forbidden everywhere"
        if use.name.removeprefix("builtins.") in FORBIDDEN_BUILTINS:
            yield use.line, f"{use.name.removeprefix('builtins.')} is forbidden everywhere"
        if use.name in SHELL_CALLS:
            yield use.line, f"{use.name} is forbidden everywhere: it starts a shell"
        if (
            module.room == TESTING
            or use.name in {"os", "os.path"}
            or _within(use.name, OS_HARMLESS)
        ):
            continue
        for door, places in DOORS.items():
            if _within(use.name, {door}) and not any(_lives_in(module, place) for place in places):
                allowed = ", ".join(places)
                yield use.line, f"{use.name} may be used in {allowed} only"


def _within(name: str, prefixes: set[str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:end]) in prefixes for end in range(1, len(parts) + 1))


def _lives_in(module: Module, place: str) -> bool:
    return module.path == place if place.endswith(".py") else module.room == place


def broken_paths(text: str, root: Path) -> list[str]:
    """The paths in backticks that do not exist; `path::name` must also be defined in its file."""
    broken = []
    for path, name in re.findall(
        r"`((?:src|tests|docs|bench|tools)/[\w./*-]*)(?:::(\w+))?(?::\d+)?(?:#[\w-]+)?`", text
    ):
        files = sorted(root.glob(path.rstrip("/")))
        if not files:
            broken.append(path)
        elif name and not any(
            re.search(rf"\b(def|class) {name}\b", file.read_text()) for file in files
        ):
            broken.append(f"{path}::{name}")
    return broken


# --- the facts ------------------------------------------------------------------------------


def test_the_package_keeps_to_its_architecture():
    assert violations(PACKAGE) == []


def test_what_spark_looks_for_is_a_name_and_nothing_else():
    (module,) = modules(ROOT / "src" / "pyspark_esker")
    assert [use.name for use in imports_of(module.tree)] == ["esker.spark.source.EskerSource"]
    assert list(_unfit_room(module, lines_max=20)) == []


def test_every_file_named_in_an_allowance_exists():
    named = {place for places in DOORS.values() for place in places if place.endswith(".py")}
    named |= {*SHELLS, *(path for path, _ in FOR_TYPES_ONLY)}
    assert [path for path in sorted(named) if not (PACKAGE / path).exists()] == []


@pytest.mark.parametrize("folder", ["tests", "bench", "tools"])
def test_what_surrounds_the_package_is_documented_and_small_too(folder):
    complaints = [
        f"{folder}/{module.path}: {text}"
        for module in modules(ROOT / folder)
        for _, text in _unfit_room(module._replace(room="cli"), LINES_MAX_AROUND)
    ]
    assert complaints == []


SERVER = PACKAGE / "server"
SERVER_ROOMS = sorted(each.parent for each in SERVER.rglob("__init__.py"))


@pytest.mark.parametrize("folder", SERVER_ROOMS, ids=lambda folder: folder.name)
def test_the_essay_of_each_part_of_the_server_names_its_modules(folder: Path):
    essay = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    there = {each.name for each in folder.glob("*.py")} - {"__init__.py"}
    there |= {f"{each.parent.name}/" for each in folder.glob("*/__init__.py")}
    named = set(re.findall(r"(?<![/a-z_])[a-z_]+(?:\.py|/(?=[\s,]))", essay))
    assert named == there


def test_the_lineage_counts_its_rows():
    text = (ROOT / "docs" / "lineage.md").read_text(encoding="utf-8")
    states = re.findall(r"^\| [A-Z]+\d+ \|.*\| ([a-z ]+) \|$", text, re.MULTILINE)
    done, part, later = (states.count(each) for each in ("done", "here in part", "later"))
    assert done + part + later == len(states), set(states)
    told = (
        f"Of {len(states)} features {done} are done, {part} are here in part, {later} come later."
    )
    assert told in text


def test_every_path_named_in_the_lineage_exists():
    lineage = ROOT / "docs" / "lineage.md"
    text = lineage.read_text(encoding="utf-8") if lineage.exists() else ""
    assert broken_paths(text, ROOT) == []


def test_every_bug_of_the_zoo_still_fits_the_source():
    """Its tests are long; that a bug no longer applies must show in seconds."""
    for mutant in mutants():
        mutant.sources(PACKAGE)
        named = " ".join(f"`{test.split('[')[0]}`" for test in mutant.tests)
        assert broken_paths(named, ROOT) == [], mutant.name


# --- the checker itself -----------------------------------------------------------------------


def check(folder: Path, path: str, source: str) -> list[str]:
    file = folder / "esker" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'"""A planted module."""\n{source}\n', encoding="utf-8")
    return violations(folder / "esker")


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("engine/topic.py", "from esker.server import app", "upward import: engine -> server"),
        ("engine/topic.py", "import esker.cli.main", "upward import: engine -> cli"),
        ("engine/topic.py", "from esker import server", "upward import: engine -> server"),
        ("engine/topic.py", "def f():\n    from esker import queues", "upward import"),
        ("engine/topic.py", "__import__('esker.cli')", "upward import: engine -> cli"),
        ("engine/topic.py", "import importlib\nimportlib.import_module(x)", "computed name"),
        ("queues/queue.py", "from esker.groups import group", "sideways import: queues -> groups"),
        ("format/frame.py", "from . import names", "relative import of .names"),
        ("format/frame.py", "from .names import parse", "relative import of .names.parse"),
        ("storage/segment.py", "import esker", "imports the front door"),
        ("storage/segment.py", "from esker import Store", "imports the front door"),
        ("engine/topic.py", "from esker.testing import clock", "which is for tests"),
        ("__init__.py", "from esker.testing import clock", "which is for tests"),
        ("helpers/text.py", "", "has no place in LAYERS"),
        (
            "records.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from esker.engine import x",
            "upward import: records -> engine",
        ),
    ],
)
def test_a_room_that_reaches_up_sideways_or_around_is_caught(tmp_path, path, source, complaint):
    (found,) = check(tmp_path, path, source)
    assert complaint in found


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("storage/segment.py", "import asyncio"),
        ("storage/segment.py", "from asyncio import Lock"),
        ("engine/engine.py", "import pyspark.sql"),
        ("engine/engine.py", "import mmap"),
        ("engine/engine.py", "import fcntl"),
        ("format/frame.py", "import threading"),
        ("queues/leases.py", "def f():\n    import time"),
        ("queues/leases.py", "from concurrent import futures"),
        ("queues/leases.py", "from datetime import datetime\nnow = datetime.now"),
        ("storage/segment.py", "import os\nos.rename(a, b)"),
        ("storage/segment.py", "import os as system\nsystem.fsync(1)"),
        ("storage/segment.py", "import os\nos.path.exists(a)"),
        ("storage/segment.py", "from os import unlink"),
        ("storage/segment.py", "import shutil"),
        ("storage/segment.py", "import pyarrow as pa\npa.memory_map(a)"),
        ("storage/segment.py", "from pyarrow import fs"),
        ("storage/files.py", "import pyarrow.fs"),
        ("engine/engine.py", "with open('x') as file: pass"),
        ("engine/engine.py", "reader = open"),
        ("engine/engine.py", "from pathlib import Path\nPath('x').unlink()"),
        ("engine/engine.py", "def f(root: Path):\n    (root / 'x').parent.mkdir()"),
        ("engine/engine.py", "def f(root: str | Path):\n    a = root / 'x'\n    a.exists()"),
        ("engine/engine.py", "class A:\n    root: Path\n    def f(self): self.root.stat()"),
        ("engine/engine.py", "text = mystery().read_text()"),
        ("engine/engine.py", "print('here')"),
        ("engine/engine.py", "import subprocess"),
        ("spark/source.py", "import subprocess"),
        ("spark/source.py", "import shutil"),
        ("spark/session.py", "from pathlib import Path\nPath('x').unlink()"),
    ],
)
def test_the_outside_world_comes_in_by_its_door_only(tmp_path, path, source):
    assert check(tmp_path, path, source) != []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n    from marshal import loads",
        "import shelve",
        "import yaml",
        "from msgspec import yaml",
        "import msgspec\nmsgspec.yaml.decode(b'')",
        "import pyarrow as pa\npa.PyExtensionType",
        "import pandas\npandas.read_pickle(b'')",
        "def f():\n    import multiprocessing",
        "__import__('pickle')",
        "eval('1')",
        "run = exec",
        "compile('1', '', 'eval')",
        "import builtins\nbuiltins.eval('1')",
        "import os\nos.system('x')",
        "from os import popen",
        "from subprocess import getoutput as run",
        "import asyncio\nasyncio.create_subprocess_shell('x')",
        "import subprocess\nsubprocess.run('x', shell=True)",
        "import subprocess\nsubprocess.Popen('x', shell=1)",
        "def f(run, given):\n    run('x', shell=given)",
    ],
)
@pytest.mark.parametrize("path", ["cli/main.py", "storage/files.py", "testing/model.py"])
def test_nothing_turns_bytes_into_code(tmp_path, path, source):
    assert any("is forbidden everywhere" in found for found in check(tmp_path, path, source))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("__init__.py", "from esker.cli import main\nfrom esker.format import frame"),
        ("testing/model.py", "import time\nfrom esker.engine import topic\nopen('x')"),
        ("engine/topic.py", "import threading\nfrom esker.storage.segment import Segment"),
        ("storage/files.py", "import fcntl, mmap, os\nos.rename(a, b)\nopen('x')"),
        ("storage/cold.py", "from pyarrow import fs"),
        ("server/app.py", "import asyncio\nfrom esker.engine import engine"),
        ("cli/main.py", "import esker\nprint(esker.open)"),
        ("cli/queues.py", "import subprocess\nsubprocess.run('x', shell=True)"),
        ("demo/crew.py", "import subprocess\nsubprocess.run(['x'], shell=False)"),
        ("cli/main.py", "complete(shell=given)"),
        ("clock.py", "import time\ntime.time_ns()"),
        ("spark/cache.py", "import shutil\nfrom pathlib import Path\nPath('x').unlink()"),
        ("options.py", "import os\nn = os.cpu_count()\nd = os.environ.get('X')"),
        ("engine/engine.py", "def open(path): ...\nopen('x')"),
        ("engine/engine.py", "self.files.rename(a, b)\n'a'.replace('a', 'b')\nfiles.open('x')"),
        ("engine/engine.py", "import re\nre.compile('x')\nframe.eval()"),
        ("engine/engine.py", "from datetime import datetime\ndatetime.fromtimestamp(1)"),
    ],
)
def test_what_is_allowed_passes(tmp_path, path, source):
    assert check(tmp_path, path, source) == []


def test_a_module_without_a_docstring_is_caught(tmp_path):
    check(tmp_path, "engine/topic.py", "")
    (tmp_path / "esker" / "engine" / "topic.py").write_text("x = 1\n")
    (found,) = violations(tmp_path / "esker")
    assert "no docstring" in found


def test_a_module_that_grew_too_long_is_caught(tmp_path):
    (found,) = check(tmp_path, "engine/topic.py", "x = 1\n" * LINES_MAX)
    assert "there is a second module in here" in found


def test_a_broken_path_in_a_document_is_caught(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "real.py").write_text("def here(): ...\n")
    text = "`src/real.py` `src/real.py::here` `src/re*.py:12` `src/` `src/<name>.py` `a/b.py`"
    assert broken_paths(text, tmp_path) == []
    text = "`src/gone.py` and `src/real.py::gone`"
    assert broken_paths(text, tmp_path) == ["src/gone.py", "src/real.py::gone"]
