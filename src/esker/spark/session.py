"""A local Spark session, tuned for Python sources such as ours, that starts on any machine.

`session()` builds what `SparkSession.builder` would, with these settings, each of which
`conf={...}` overrides:

    a Java is found or brought along                java.py
    unix domain sockets between Java and Python     a scan takes about a tenth less time
    filters are handed to Python sources            off by default, although sources ask for it
    checkpoints by plain rename                     a micro-batch takes a quarter less time
    as many shuffle partitions as cores             the default of 200 is meant for a cluster
    workers use the installed PySpark               its zip holds no bytecode: 2 s at first use
    errors on stderr, nothing else                  log4j2.properties, in this directory

Spark reads some of its settings from the environment when it starts its JVM. These are set for
that moment and put back, except for `PYSPARK_PYTHON`, which Spark reads again later.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esker.errors import InvalidOption, PySparkMissing
from esker.spark import cache, java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST = (4, 3)
SECONDS_TO_END = 120  # of a JVM; one that writes down its classes takes about 15
DRIVER_OPTIONS = "spark.driver.extraJavaOptions"

_TUNED = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.redaction.options.regex": "(?i)url|^key$",  # the key of a server, in event logs
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
    "spark.ui.showConsoleProgress": "false",
}
# On one machine nobody else has to reach us, and the machine's name need not be known to anyone.
_LOCAL = {"spark.driver.host": "localhost", "spark.driver.bindAddress": "127.0.0.1"}
# For tests: an optimizer less and a collector without threads start sooner, and run slower.
_LEAN = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
_LOGGING = f'-Dlog4j2.configurationFile="{Path(__file__).with_name("log4j2.properties")}"'
# A JVM that writes down its classes warns of each that it cannot.
_HUSHED = "-Xlog:disable -Xlog:all=error:stderr -XX:+DisplayVMOutputToStderr"
_LEAN_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def session(
    app_name: str | None = None,
    master: str | None = None,
    conf: Mapping[str, object] | None = None,
    *,
    fast_start: bool = False,
    lean: bool = False,
) -> SparkSession:
    """A Spark session called `esker` on `local[*]`, tuned; `conf` has the last word.

    A session that runs already in this process is left as it is. If it has all that is wanted it
    is what you get; else you get a new one on top of the same Spark, with settings and views of
    its own. What can only be set before Spark starts is then an `InvalidOption`.

    `fast_start` keeps the loaded Java classes in the cache directory (about 150 MB). The first
    program that asks for it writes them down when it ends, which takes a while, once; the next
    ones start in half the time. `lean` starts sooner and computes more slowly: for tests.

    Raises `PySparkMissing` or `JavaMissing`, which say what to install.
    """
    require()
    asked = {key: _text(value) for key, value in (conf or {}).items()}
    if app_name is not None:
        asked.setdefault("spark.app.name", app_name)
    if master is not None:
        asked.setdefault("spark.master", master)
    wanted = _defaults(asked.get("spark.master", "local[*]"), lean) | asked
    running = _running()
    if running is not None:
        return _beside(running, wanted, asked)
    _require_esker_in_workers()
    found = java.find()
    options = [_LOGGING, _LEAN_JAVA] if lean else [_LOGGING]
    archive = _Archive.of(found, lean) if fast_start else None
    if archive is not None:
        options.append(archive.option)
    wanted[DRIVER_OPTIONS] = " ".join([*options, asked.get(DRIVER_OPTIONS, "")]).rstrip()
    with _set(_variables(found, wanted["spark.master"])):
        started = _start(wanted)
    if archive is not None and archive.is_new:
        _unwritten.append(archive)
        atexit.register(shutdown)
    return started


def environment() -> dict[str, str]:
    """What to add to the environment of a program that starts Spark itself, such as the command
    `spark-pipelines`: a Java, this Python, and the installed PySpark."""
    require()
    return _variables(java.find(), "local")


def shutdown() -> None:
    """Stop Spark in this process, end its JVM and wait until it is gone.

    `SparkSession.stop()` leaves the JVM running, for a session that might follow. One that is
    started after this gets a new JVM.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    while _clients:
        _clients.pop().close()  # each would ask for the server when the program ends, and wait
    running = _running()
    if running is not None:
        running.stop()
    gateway: Any = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    process: subprocess.Popen[bytes] | None = gateway.proc  # none if the JVM is not ours
    archive = _unwritten.pop() if _unwritten else None
    if process is not None and archive is not None:
        archive.before_the_end(process.pid)
    gateway.shutdown()
    if process is not None and process.stdin is not None:
        process.stdin.close()  # which is how it learns that nobody is there any more
        try:
            process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if archive is not None and process.returncode == 0:
            archive.finish()


# ---- settings ----------------------------------------------------------------------------


def _defaults(master: str, lean: bool) -> dict[str, str]:
    settings = {"spark.app.name": "esker", "spark.master": master} | _TUNED
    if master.startswith("local"):
        settings |= _LOCAL
        settings["spark.sql.shuffle.partitions"] = str(_cores(master))
    return settings | _LEAN if lean else settings


def _cores(master: str) -> int:
    """Of `local`, `local[4]`, `local[*]`, `local[4,2]` or `local-cluster[2,4,1024]`."""
    match re.findall(r"\d+", master):
        case [executors, cores, _]:
            return int(executors) * int(cores)
        case [cores, *_]:
            return int(cores)
    return len(os.sched_getaffinity(0)) if "*" in master else 1


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _variables(found: java.Java, master: str) -> dict[str, str]:
    """The environment that Spark's JVM is started with."""
    variables = {"JAVA_HOME": str(found.home)}
    if "PYSPARK_PYTHON" not in os.environ:
        variables["PYSPARK_PYTHON"] = sys.executable
    if "SPARK_HOME" not in os.environ and master.startswith("local"):
        with contextlib.suppress(OSError):  # a cache that cannot be written costs seconds, no more
            variables["SPARK_HOME"] = str(_home())
    return variables


def _home() -> Path:
    """The installed Spark without its zip of Python modules.

    Workers look into that zip first. It holds no bytecode, so that each of them would compile what
    it imports, every time.
    """
    import pyspark

    installed = Path(pyspark.__file__).parent
    return cache.tree("spark", {}, {name: installed / name for name in ("bin", "jars", "sbin")})


@contextlib.contextmanager
def _set(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables.keys() - {"PYSPARK_PYTHON"}:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


# ---- Spark -------------------------------------------------------------------------------


def require() -> None:
    """Raise `PySparkMissing`, which says what to install, unless PySpark is there."""
    try:
        import pyspark
    except ImportError as problem:
        raise PySparkMissing(
            f"PySpark is not installed for {sys.executable} ({problem}): pip install 'esker[spark]'"
        ) from problem
    version = tuple(int(number) for number in re.findall(r"\d+", pyspark.__version__)[:2])
    if version < OLDEST:
        raise PySparkMissing(
            f"PySpark {pyspark.__version__} is too old, Esker needs "
            f"{'.'.join(map(str, OLDEST))} or newer: pip install --upgrade 'esker[spark]'"
        )


def _require_esker_in_workers() -> None:
    """Spark's workers import the source by its name, with the Python that the user may choose."""
    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    if python == sys.executable:
        return
    code = "import importlib.util as i, sys; sys.exit(i.find_spec('pyspark_esker') is None)"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, check=False)
    except OSError as problem:
        raise PySparkMissing(
            f"PYSPARK_PYTHON is {python}, which cannot be started ({problem.strerror}): "
            "unset it, and Spark's workers run with the Python of this program"
        ) from problem
    if done.returncode != 0:
        raise PySparkMissing(
            f"PYSPARK_PYTHON is {python}, in which Esker is not installed, so Spark's workers "
            f"cannot read topics: {python} -m pip install 'esker[spark]', or unset PYSPARK_PYTHON"
        )


def _running() -> SparkSession | None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None and SparkContext._active_spark_context is not None:
        return SparkSession(SparkContext._active_spark_context)
    return active


def _start(wanted: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for key, value in wanted.items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        # With Spark Connect every setting is made twice: for the server that is started, and then
        # in its session, which refuses what only the server can set.
        warnings.filterwarnings("ignore", r"Failed to set spark\.", UserWarning)
        return builder.getOrCreate()


def _beside(
    running: SparkSession, wanted: Mapping[str, str], asked: Mapping[str, str]
) -> SparkSession:
    """A session with these settings that shares the Spark of the one that runs."""
    other = {key: value for key, value in wanted.items() if running.conf.get(key, None) != value}
    fixed = {key for key in other if not running.conf.isModifiable(key)}
    refused = [
        f"{key} is {running.conf.get(key, None)!r} and was to be {other[key]!r}"
        for key in sorted(fixed & asked.keys())
    ]
    if refused:
        raise InvalidOption(
            "a Spark session runs in this process, and some settings are made only when Spark "
            f"starts: {'; '.join(refused)}. Stop it first with esker.spark.shutdown()"
        )
    if other.keys() <= fixed:
        return running
    made = running.newSession()
    if type(made).__module__.startswith("pyspark.sql.connect"):
        _clients.append(made.client)
    for key in other.keys() - fixed:
        made.conf.set(key, other[key])
    return made


# ---- classes of an earlier session -------------------------------------------------------


class _Archive:
    """Java classes as they are in memory, kept in a file: the JVM maps it and need not load them.

    It fits one Java, one Spark and one set of options, all of which are in its name. A JVM that
    finds a file that does not fit after all goes on without it.
    """

    def __init__(self, path: Path, found: java.Java) -> None:
        self.path = path
        self.is_new = not cache.holds(path)
        self._made = cache.unfinished(path) if self.is_new else path
        self._notes: Path | None = None
        self._command: list[str] = []
        if found.major < 25:
            name = "ArchiveClassesAtExit" if self.is_new else "SharedArchiveFile"
            self.option = f'{_HUSHED} -XX:{name}="{self._made}"'
        elif self.is_new:
            self._notes = self._made.with_name(f"notes-{self._made.name}")
            self.option = f'{_HUSHED} {java.RECORD} -XX:AOTConfiguration="{self._notes}"'
        else:
            self.option = f'{_HUSHED} -XX:AOTCache="{path}"'

    @classmethod
    def of(cls, found: java.Java, lean: bool) -> _Archive | None:
        """The one of this Java; none if it cannot have one."""
        import pyspark

        name = cache.digest(found.real, found.version, pyspark.__file__, pyspark.__version__, lean)
        base = found.real.parent.parent / "lib" / "server" / "classes.jsa"
        if found.major < 25 and not cache.holds(base):
            return None  # before Java 25 it could only add to what the Java came with
        try:
            return cls(cache.root() / f"classes-{name}.jsa", found)
        except OSError:
            return None  # a slow start is better than none

    def before_the_end(self, pid: int) -> None:
        """Call while the JVM still runs."""
        self._command = java.command_line(pid)

    def finish(self) -> None:
        """Call when the JVM has ended, and well."""
        if self._notes is not None:  # since Java 25 a JVM takes notes, and another one follows them
            java.assemble(self._command, self._made)
            cache.forget(self._notes)
        cache.finish(self._made, self.path)


_unwritten: list[_Archive] = []  # at most one: a process has one JVM at a time
_clients: list[Any] = []  # of Spark Connect, of the sessions that `_beside` made
