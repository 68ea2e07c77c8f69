"""On a standalone master with two workers, started from the installed package: the same results.

What is simulated: one machine plays all of them, so the store's directory is a shared one and the
network is loopback. What is real: a master, workers and executors in processes of their own, which
get the job over the network and import `esker` by themselves.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import esker
import esker.spark
from tests.helpers import wait_until
from tests.spark.copying import Copier, digest, disorder, feed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_LEAN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@contextmanager
def started(folder: Path, name: str, *arguments: str) -> Iterator[Path]:
    """One of Spark's daemons; gives the file that it writes to."""
    variables = esker.spark.environment()
    command = Path(variables["SPARK_HOME"]) / "bin" / "spark-class"
    log = folder / f"{name}-{len(list(folder.glob('*.log')))}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(command), f"org.apache.spark.deploy.{name}", "--host", "localhost", *arguments],
            cwd=folder, stdout=output, stderr=subprocess.STDOUT,
            env={
                **os.environ, **variables, "SPARK_DAEMON_JAVA_OPTS": _LEAN,
                "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": str(folder),
            },
        )  # fmt: skip
    try:
        yield log
    finally:
        process.terminate()
        process.wait(30)


def told(log: Path, pattern: str) -> str:
    """What a daemon says of itself, once it does."""
    found = wait_until(lambda: re.search(pattern, log.read_text(errors="replace")), pattern)
    return str(found[1])


def test_two_workers_of_a_standalone_master(
    tmp_path: Path, sooner: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in sooner.items():
        monkeypatch.setenv(name, value)
    data, copy, logs = tmp_path / "data", tmp_path / "copy", tmp_path / "logs"
    logs.mkdir()
    with ExitStack() as cluster:
        run = cluster.enter_context
        log = run(started(logs, "master.Master", "--port", "0", "--webui-port", "0"))
        master = told(log, r"Starting Spark master at (spark://\S+)")
        workers = [
            run(started(logs, "worker.Worker", "-c", "1", "-m", "1g", "--webui-port", "0", master))
            for _ in range(2)
        ]
        for worker in workers:
            told(worker, r"(Successfully registered) with master")
        store = run(esker.open(data))
        store.create("t", shards=2)
        feed(store, 0, 1000)
        conf = {
            "spark.executor.memory": "512m", "spark.executor.extraJavaOptions": _LEAN,
            "spark.driver.host": "localhost", "spark.driver.bindAddress": "127.0.0.1",
        }  # fmt: skip
        copier = run(Copier(tmp_path, master, conf=conf))
        copier.ready()
        copier.say("batch", data=data, copy=copy, topic="b")
        assert copier.answer() == {"failures": 0}
        copier.say("stream", data=data, copy=copy, topic="s", checkpoint=tmp_path / "checkpoint")
        assert copier.answer() == {"failures": 0}
        copier.end()
        executors = [told(worker, r"Asked to launch executor (\S+)") for worker in workers]
    assert len(executors) == 2
    for topic in ("b", "s"):
        assert digest(copy, topic) == digest(data, "t")
        assert disorder(copy, topic) == []
