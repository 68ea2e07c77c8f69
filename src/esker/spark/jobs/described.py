"""What an aggregation is to compute, as somebody writes it down: in a dict, JSON or TOML.

    window = "1m"                       # and slide = "30s", if windows are to overlap
    group_by = ["product"]
    where = "price > 0"                 # Spark SQL over the fields, and key, tag, node, timestamp
    time = "timestamp"                  # of the record, or one of the fields
    lateness = "10s"                    # how long a window stays open for those that come late

    [schema]                            # the fields of the value, which is a JSON object
    product = "STRING"
    price = "DOUBLE"

    [metrics]
    orders = "count"
    turnover = "sum(price)"
    p95 = "p95(price)"

Everything is checked before Spark is asked, and a word that is nearly right is named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from esker.errors import InvalidOption, nearest
from esker.options import duration_us
from esker.storage.files import SYSTEM_FILES

_TYPES: Final = ("STRING", "INT", "BIGINT", "DOUBLE", "BOOLEAN", "TIMESTAMP")
_NUMBERS: Final = ("INT", "BIGINT", "DOUBLE")
_TIMES: Final = ("TIMESTAMP", "STRING", *_NUMBERS)
_FUNCTIONS: Final = {
    "count": "count({})",
    "sum": "sum({})",
    "avg": "avg({})",
    "min": "min({})",
    "max": "max({})",
    "p50": "percentile_approx({}, 0.5)",
    "p95": "percentile_approx({}, 0.95)",
    "p99": "percentile_approx({}, 0.99)",
    "distinct": "approx_count_distinct({})",
}
_ANY_TYPE: Final = ("count", "min", "max", "distinct")
_METRIC: Final = re.compile(r"\s*(\w+)\s*(?:\(\s*(\w*)\s*\)\s*)?", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_OURS: Final = ("key", "tag", "node", "partition")  # columns of the record that may group
_TAKEN: Final = ("window_start", "window_end")


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A description, as it was written."""

    window: str
    metrics: dict[str, str]
    schema: dict[str, str] = {}
    slide: str = ""
    group_by: list[str] = []
    where: str = ""
    time: str = "timestamp"
    time_unit: Literal["s", "ms", "us"] = "ms"  # of a field that is a number
    lateness: str = "0s"

    @property
    def value_schema(self) -> str:
        """The fields as Spark's DDL."""
        return ", ".join(f"`{name}`: {kind}" for name, kind in self.schema.items())

    @property
    def window_us(self) -> int:
        return duration_us(self.window, "window")

    @property
    def slide_us(self) -> int:
        return duration_us(self.slide, "slide") if self.slide else self.window_us

    @property
    def lateness_us(self) -> int:
        return duration_us(self.lateness, "lateness")

    @property
    def moment(self) -> str:
        """When a record happened, as SQL."""
        kind = self.schema.get(self.time, "TIMESTAMP")
        if kind in ("INT", "BIGINT"):
            per = {"s": 1_000_000, "ms": 1_000, "us": 1}[self.time_unit]
            return f"timestamp_micros(CAST(`{self.time}` AS BIGINT) * {per})"
        if kind == "DOUBLE":
            per = {"s": 1_000_000, "ms": 1_000, "us": 1}[self.time_unit]
            return f"timestamp_micros(CAST(`{self.time}` * {per} AS BIGINT))"
        return f"try_cast(`{self.time}` AS TIMESTAMP)" if kind == "STRING" else f"`{self.time}`"

    @property
    def computed(self) -> dict[str, str]:
        """The metrics as SQL."""
        return {name: _sql(text) for name, text in self.metrics.items()}


def spec_of(given: Mapping[str, Any] | str) -> Spec:
    """A checked description, from a dict or from the path of a JSON or TOML file."""
    where = given if isinstance(given, str) else "spec"
    found = _loaded(given) if isinstance(given, str) else dict(given)
    if isinstance(found, dict):
        for name in found:
            if name not in Spec.__struct_fields__:
                raise InvalidOption(
                    f"{where}: there is no {name!r}; {nearest(name, Spec.__struct_fields__)}"
                )
    try:
        spec = msgspec.convert(found, Spec)
    except msgspec.ValidationError as problem:
        raise InvalidOption(f"{where}: {problem}") from problem
    spec = msgspec.structs.replace(
        spec, schema={name: kind.strip().upper() for name, kind in spec.schema.items()}
    )
    _check(where, spec)
    return spec


def _loaded(path: str) -> Any:
    if not SYSTEM_FILES.kind(path):
        raise InvalidOption(f"{path}: there is no such file; a spec is a JSON or a TOML file")
    file = SYSTEM_FILES.open(path, "r")
    try:
        data = file.read(0, file.size())
    finally:
        file.close()
    try:
        return msgspec.toml.decode(data) if path.endswith(".toml") else msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError) as problem:
        raise InvalidOption(f"{path}: {problem}") from problem


def _check(where: str, spec: Spec) -> None:
    for name, kind in spec.schema.items():
        if not _NAME.fullmatch(name):
            raise InvalidOption(f"{where}: schema: {name!r} is no name for a field")
        if kind not in _TYPES:
            raise InvalidOption(f"{where}: schema: {name}: {kind!r}: {nearest(kind, _TYPES)}")
    _check_times(where, spec)
    known = [*spec.schema, *_OURS]
    for name in spec.group_by:
        if name not in known:
            raise InvalidOption(f"{where}: group_by: no field {name!r}; {nearest(name, known)}")
    if not spec.metrics:
        raise InvalidOption(f'{where}: no metrics; as in "orders": "count"')
    for name, text in spec.metrics.items():
        _check_metric(where, spec, name, text)


def _check_times(where: str, spec: Spec) -> None:
    if spec.window_us <= 0:
        raise InvalidOption(f"{where}: window={spec.window!r} is no length of time")
    if not 0 < spec.slide_us <= spec.window_us:
        raise InvalidOption(
            f"{where}: slide={spec.slide!r}: above 0, and not above the window's {spec.window!r}"
        )
    if spec.lateness_us < 0:
        raise InvalidOption(f"{where}: lateness={spec.lateness!r} is no length of time")
    known = ["timestamp", *spec.schema]
    if spec.time not in known:
        raise InvalidOption(f"{where}: time: no field {spec.time!r}; {nearest(spec.time, known)}")
    kind = spec.schema.get(spec.time, "TIMESTAMP")
    if kind not in _TIMES:
        raise InvalidOption(f"{where}: time: {spec.time} is {kind}, not one of {', '.join(_TIMES)}")


def _check_metric(where: str, spec: Spec, name: str, text: str) -> None:
    place = f"{where}: metrics: {name}"
    if not _NAME.fullmatch(name) or name in spec.group_by or name in _TAKEN:
        raise InvalidOption(f"{place}: a name of its own is needed, of letters, digits and _")
    found = _METRIC.fullmatch(text)
    if found is None:
        raise InvalidOption(f"{place}={text!r}: as in count, sum(price), p95(price)")
    function, field = found[1], found[2] or ""
    if function not in _FUNCTIONS:
        raise InvalidOption(f"{place}={text!r}: {nearest(function, _FUNCTIONS)}")
    if not field:
        if function != "count":
            raise InvalidOption(f"{place}={text!r}: of which field? As in {function}(price)")
        return
    if field not in spec.schema:
        raise InvalidOption(f"{place}={text!r}: no field {field!r}; {nearest(field, spec.schema)}")
    if function not in _ANY_TYPE and spec.schema[field] not in _NUMBERS:
        raise InvalidOption(f"{place}={text!r}: {field} is {spec.schema[field]}, not a number")


def _sql(text: str) -> str:
    found = _METRIC.fullmatch(text)
    assert found is not None
    return _FUNCTIONS[found[1]].format(f"`{found[2]}`" if found[2] else "1")
