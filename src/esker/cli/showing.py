"""`esker demo`, `esker cheat`, `esker completion`: for those who have just come."""

from __future__ import annotations

from typing import Literal

from esker.cli.shown import Flag

CHEAT = """\
# write
esker append orders 'one record' 'and another'
esker append orders -k user-7 --tag eu < lines.txt
tail -f app.log | esker append logs
esker import orders.parquet orders

# read; where to start: earliest, latest, 17, -100, @2026-11-15T10:00, @-15m
esker read orders -s -10
esker read orders -s @-3d -o raw
esker read orders --where 'tag == "eu" and json.amount > 100'
esker read orders --format '{offset} {key} {value.amount}'
esker tail -f orders
esker sql "select key, count(*) from orders group by key"
esker export orders orders.parquet

# topics
esker ls
esker info orders
esker create orders --shards 4 --durability fsync --ttl 7d
esker alter orders --cap-bytes 10GiB
esker rm orders --before @-30d --yes
esker report
esker top

# readers that share a topic
esker group ls
esker group seek orders billing @-1h --dry-run

# jobs
esker queue create emails --lease 30s --max-deliveries 5
esker queue put emails 'welcome, user-7'
esker queue claim emails --exec ./send-mail
esker queue dead requeue emails --all

# from topic to topic
esker route add orders payments --where 'json.amount > 100'

# the store
esker doctor
esker verify
esker backup backups/monday
esker restore backups/monday --data restored
esker retention plan
esker du
esker bench

# over HTTP; then every command above with --url
esker serve data
ESKER_URL=http://127.0.0.1:4117 esker ls
"""


def demo(
    *, dir: str = "esker-demo",
    keep: Flag = False,
    fast: Flag = False,
    no_spark: Flag = False,
    serve: Flag = False,
    check: Flag = False,
) -> int:  # fmt: skip
    """A shop on this machine that is killed while it sells; every claim is counted.

    Parameters
    ----------
    dir
        Where it happens.
    keep
        Go on with what a former run left.
    fast
        Over in seconds, without Spark.
    no_spark
        Without Spark.
    serve
        Leave the server and its console up until Ctrl-C.
    check
        Only count again what a former run left.
    """
    from esker import demo as shop

    spark = not (fast or no_spark)
    return shop.run(dir, keep=keep, fast=fast, spark=spark, serve=serve, check=check)


def cheat() -> int:
    """The commands that people need, to be copied."""
    print(CHEAT, end="")
    return 0


def completion(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """Print what has your shell complete commands and options.

    bash: esker completion bash > ~/.local/share/bash-completion/completions/esker
    zsh: esker completion zsh > a directory of $fpath, as _esker
    fish: esker completion fish > ~/.config/fish/completions/esker.fish

    Parameters
    ----------
    shell
        Which one.
    """
    from esker.cli.tree import app

    print(app.generate_completion(shell=shell))
    return 0
