"""Options of a read: Kafka's names, defaults and rules; errors say what is right."""

from __future__ import annotations

import pytest

import esker
from esker.positions import Position
from esker.spark.wanted import ALWAYS, Wanted, schema_of, wanted

NOW = 1_800_000_000_000_000


def asked(streaming: bool | None = False, **options: str) -> Wanted:
    return wanted({"path": "/d", "subscribe": "t", **options}, now_us=NOW, streaming=streaming)


def test_defaults_are_those_of_kafka() -> None:
    batch, stream = asked(), asked(True)
    assert batch.starting.everywhere == Position("earliest")
    assert batch.ending.everywhere == Position("latest")
    assert stream.starting.everywhere == Position("latest")
    assert batch.on_loss == "fail"
    assert batch.columns == ALWAYS
    assert schema_of(batch) == (
        "`key` BINARY, `value` BINARY, `topic` STRING, `partition` INT, `offset` BIGINT,"
        " `timestamp` TIMESTAMP, `timestampType` INT"
    )


AT = Position("time", 1_700_000_000_000_000)
IN_KAFKAS_GUIDE: list[tuple[str, str, bool | None, str, object]] = [
    # every option of Spark's Kafka source: a value, in what queries it counts (None: in both), and
    # what comes of it
    ("assign", '{"a": [2, 0]}', None, "topics", {"a": (0, 2)}),
    ("subscribe", "a, b", None, "topics", {"a": (), "b": ()}),
    ("subscribePattern", "a.*", None, "pattern", "a.*"),
    ("startingTimestamp", "1700000000000", None, "starting.everywhere", AT),
    ("startingOffsetsByTimestamp", '{"a": {"0": 1700000000000}}', None, "starting.each",
     {"a": {0: AT}}),
    ("startingOffsets", '{"a": {"0": 23, "1": -2}}', None, "starting.each",
     {"a": {0: Position("offset", 23), 1: Position("earliest")}}),
    ("startingOffsets", "earliest", None, "starting.everywhere", Position("earliest")),
    ("startingOffsets", "latest", True, "starting.everywhere", Position("latest")),
    ("startingOffsetsByTimestampStrategy", "latest", None, "starting.strict", False),
    ("endingTimestamp", "1700000000000", None, "ending.everywhere", AT),
    ("endingOffsetsByTimestamp", '{"a": {"0": 1700000000000}}', None, "ending.each",
     {"a": {0: AT}}),
    ("endingOffsets", '{"a": {"0": 50, "1": -1}}', None, "ending.each",
     {"a": {0: Position("offset", 50), 1: Position("latest")}}),
    ("endingOffsets", "latest", None, "ending.everywhere", Position("latest")),
    ("failOnDataLoss", "false", None, "on_loss", "skip"),
    ("failOnDataLoss", "true", None, "on_loss", "fail"),
    ("minPartitions", "9", None, "min_partitions", 9),
    ("maxRecordsPerPartition", "9", None, "max_records", 9),
    ("maxOffsetsPerTrigger", "9", True, "max_offsets", 9),
    ("minOffsetsPerTrigger", "9", True, "min_offsets", 9),
    ("maxTriggerDelay", "2m", True, "max_delay_us", 120_000_000),
    ("group", "billing", True, "group", "billing"),
    ("includeHeaders", "true", None, "columns", (*ALWAYS, "headers")),
]  # fmt: skip


@pytest.mark.parametrize(("option", "text", "mode", "attribute", "value"), IN_KAFKAS_GUIDE)
def test_an_option_of_kafkas_does_here_what_it_does_there(
    option: str, text: str, mode: bool | None, attribute: str, value: object
) -> None:
    given = {"path": "/d", option: text}
    if option not in ("assign", "subscribe", "subscribePattern"):
        given["subscribe"] = "a"
    for streaming in (False, True) if mode is None else (mode,):
        found: object = wanted(given, now_us=NOW, streaming=streaming)
        for name in attribute.split("."):
            found = getattr(found, name)
        assert found == value


@pytest.mark.parametrize(
    "option",
    ["kafka.bootstrap.servers", "kafka.group.id", "groupIdPrefix", "kafkaConsumer.pollTimeoutMs",
     "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"],
)  # fmt: skip
def test_an_option_about_brokers_is_told_so(option: str) -> None:
    for streaming in (None, False, True):
        with pytest.raises(esker.InvalidOption, match="there is no broker to set up"):
            asked(streaming, **{option: "5"})


@pytest.mark.parametrize(
    ("option", "text", "position"),
    [
        ("startingOffsets", "earliest", Position("earliest")),
        ("startingOffsets", "17", Position("offset", 17)),
        ("startingOffsets", "-5", Position("back", 5)),
        ("startingOffsets", "@-1s", Position("time", NOW - 1_000_000)),
        ("startingTimestamp", "1700000000000", Position("time", 1_700_000_000_000_000)),
    ],
)
def test_a_place_for_all_shards(option: str, text: str, position: Position) -> None:
    assert asked(**{option: text}).starting.everywhere == position


def test_a_place_for_each_shard() -> None:
    found = asked(
        startingOffsets='{"t": {"0": 23, "1": -2}}', endingOffsets='{"t": {"0": -1, "1": 9}}'
    )
    assert found.starting.each == {"t": {0: Position("offset", 23), 1: Position("earliest")}}
    assert found.ending.each == {"t": {0: Position("latest"), 1: Position("offset", 9)}}
    by_time = asked(startingOffsetsByTimestamp='{"t": {"0": 1000}}').starting
    assert by_time.each == {"t": {0: Position("time", 1_000_000)}}
    assert by_time.strict


def test_the_first_of_three_ways_to_say_it_counts() -> None:
    found = asked(
        startingTimestamp="1", startingOffsetsByTimestamp='{"t": {"0": 2}}', startingOffsets="3"
    )
    assert found.starting.option == "startingTimestamp"
    found = asked(startingOffsetsByTimestamp='{"t": {"0": 2}}', startingOffsets="3")
    assert found.starting.option == "startingOffsetsByTimestamp"


def test_names_are_found_whatever_their_case() -> None:
    assert asked(MINPARTITIONS="7", includeheaders="TRUE").min_partitions == 7
    assert "headers" in asked(includeheaders="TRUE").columns


def test_columns_and_values() -> None:
    assert asked(columns="timestamp, OFFSET").columns == ("timestamp", "offset")
    assert asked(includeTag="true", includeNode="true").columns == (*ALWAYS, "tag", "node")
    assert asked(onDataLoss="gapRow").columns == (*ALWAYS, "gap")
    assert "`value` STRING" in schema_of(asked(valueFormat="string"))
    json = asked(valueFormat="json", valueSchema="a INT, b STRING")
    assert "`value` STRUCT<a INT, b STRING>" in schema_of(json)


def test_loss_is_called_by_either_name() -> None:
    assert asked(failOnDataLoss="false").on_loss == "skip"
    assert asked(failOnDataLoss="true").on_loss == "fail"
    assert asked(onDataLoss="skip", failOnDataLoss="false").on_loss == "skip"


def test_limits_of_a_stream() -> None:
    found = asked(True, maxOffsetsPerTrigger="5", minOffsetsPerTrigger="2", maxTriggerDelay="30s")
    assert (found.max_offsets, found.min_offsets, found.max_delay_us) == (5, 2, 30_000_000)
    assert asked(True, maxTriggerDelay="1500").max_delay_us == 1_500_000
    assert asked(True).max_delay_us == 900_000_000


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"startingoffset": "1"}, "did you mean 'startingOffsets'"),
        ({"kafka.bootstrap.servers": "x:9092"}, "there is no broker"),
        ({"assign": '{"t": [0]}'}, "exactly one of subscribe, subscribePattern, assign"),
        ({"subscribe": " , "}, "subscribe names no topic"),
        ({"startingOffsets": "latest"}, "reads nothing"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "reads nothing"),
        ({"endingOffsets": "earliest"}, "reads nothing"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "-2 is earliest, -1 is latest"),
        ({"startingOffsets": '{"t": {"x": 1}}'}, "'x' is not the number of a shard"),
        ({"startingOffsets": '{"t": 1}'}, 'as in {"orders": {"0": 23, "1": -2}}'),
        ({"startingOffsets": "soon"}, "a position is one of"),
        ({"startingTimestamp": "2026-11-15"}, "startingOffsets=@2026-11-15T10:00"),
        ({"maxOffsetsPerTrigger": "5"}, "use spark.readStream"),
        ({"minPartitions": "0"}, "a number of 1 or more"),
        ({"includeHeaders": "yes"}, "true or false"),
        ({"onDataLoss": "ignore"}, "one of fail, skip, gapRow"),
        ({"onDataLoss": "skip", "failOnDataLoss": "true"}, "do not agree"),
        ({"columns": "value,ofset"}, "did you mean 'offset'"),
        ({"columns": "gap"}, "with onDataLoss=gapRow only"),
        ({"columns": "offset", "onDataLoss": "gapRow"}, "with onDataLoss=gapRow add gap to offset"),
        ({"valueFormat": "json"}, "valueFormat=json and valueSchema go together"),
        ({"valueSchema": "a INT"}, "valueFormat=json and valueSchema go together"),
        ({"valueFormat": "xml"}, "one of binary, string, json"),
        ({"startingOffsetsByTimestampStrategy": "none"}, "one of error, latest"),
    ],
)
def test_what_is_wrong_is_told(options: dict[str, str], told: str) -> None:
    with pytest.raises(esker.InvalidOption) as caught:
        asked(**options)
    assert told in str(caught.value)


def test_a_schema_must_have_the_column_that_tells_of_gaps() -> None:
    from pyspark.sql.types import LongType, StructField, StructType

    from esker.spark.source import narrowed

    def schema(*names: str) -> StructType:
        return StructType([StructField(name, LongType()) for name in names])

    assert narrowed(asked(), schema("offset")).columns == ("offset",)
    for names in (("offset",), ALWAYS):
        with pytest.raises(esker.InvalidOption, match="schema: with onDataLoss=gapRow add gap"):
            narrowed(asked(onDataLoss="gapRow"), schema(*names))
    whole = asked(onDataLoss="gapRow")
    assert narrowed(whole, schema(*whole.columns)) == whole


def test_a_store_and_topics_must_be_named() -> None:
    with pytest.raises(esker.InvalidOption, match="which store"):
        wanted({"subscribe": "t"}, now_us=NOW, streaming=False)
    with pytest.raises(esker.InvalidOption, match='option\\("subscribe", "orders"\\)'):
        wanted({"path": "/d"}, now_us=NOW, streaming=False)
    with pytest.raises(esker.InvalidOption, match="subscribePattern"):
        wanted({"path": "/d", "subscribePattern": "("}, now_us=NOW, streaming=False)
    with pytest.raises(esker.InvalidOption, match="names no shard"):
        wanted({"path": "/d", "assign": "{}"}, now_us=NOW, streaming=False)


def test_a_stream_has_an_end_only_if_one_is_given() -> None:
    assert not asked(True).has_end
    found = asked(True, endingOffsets="latest")
    assert found.has_end
    assert found.ending.everywhere == Position("latest")
    assert asked(True, endingTimestamp="5").ending.everywhere == Position("time", 5_000)
    with pytest.raises(esker.InvalidOption, match="reads nothing"):
        asked(True, endingOffsets="earliest")
    asked(None, endingOffsets="latest", maxOffsetsPerTrigger="5")  # not known yet what it is
