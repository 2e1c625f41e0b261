"""The options of `format("outbox")`: taken as Spark gives them, refused in words that help."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from outbox.errors import OutboxError, StreamMissing, UsageError
from spark_sink.pushed import Pushed
from spark_sink.source import full_schema, wanted_schema
from spark_sink.source_options import SourceOptions
from spark_sink.spark_types import to_spark
from tests.streams import write_stream

URL = "file:///a"


def test_options_are_read_in_any_case():
    found = SourceOptions.parse({"STREAM": URL, "maxrowsperbatch": "5", "From": "7", "types": "order.*, user.made"})
    assert (found.streams, found.rows_max, found.start, found.end) == ((URL,), 5, "7", None)
    assert found.types == ("order.*", "user.made")
    assert SourceOptions.parse({"path": URL}).streams == (URL,)


def test_streams_are_a_url_a_list_or_a_pattern(tmp_path: Path):
    for name in ("shop-a", "shop-b", "other"):
        write_stream(f"file://{tmp_path}/{name}", [{}])
    (tmp_path / "shop-no-stream").mkdir()
    both = [f"file://{tmp_path}/shop-a", f"file://{tmp_path}/shop-b"]
    for text in (",".join(both), json.dumps(both), f"file://{tmp_path}/shop-*"):
        options = SourceOptions.parse({"stream": text})
        assert options.expanded() == both
        assert options.has_several
        assert full_schema(options).names[0] == "stream"
    assert SourceOptions.parse({"stream": f"{both[0]},file://{tmp_path}/*"}).expanded() == [
        both[0], f"file://{tmp_path}/other", both[1],
    ]  # fmt: skip
    assert not SourceOptions.parse({"stream": both[0]}).has_several
    with pytest.raises(StreamMissing, match="no stream matches"):
        SourceOptions.parse({"stream": f"file://{tmp_path}/none-*"}).expanded()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the stream"),
        ({"stream": URL, "path": "file:///b"}, "once"),
        ({"stream": URL, "form": "1"}, "no option 'form'"),
        ({"stream": "/just/a/path"}, "not a stream URL"),
        ({"stream": ","}, "names no stream"),
        ({"stream": "memory://x"}, "lives in one process"),
        ({"stream": "kafka://host/t*"}, "only file://"),
        ({"stream": "[1]"}, "not of texts"),
        ({"stream": '["file:///a"'}, "looks like a JSON list"),
        ({"stream": URL, "from": "yesterday"}, "give an ID, a time such as .*, earliest, latest"),
        ({"stream": URL, "to": "tomorrow"}, "give an ID, a time"),
        ({"stream": URL, "from": "9", "to": "3"}, "ends before it begins"),
        ({"stream": URL, "schema": "total dubble"}, "unknown type 'dubble'"),
        ({"stream": URL, "columns": "total"}, "no column 'total'"),
        ({"stream": URL, "pieces": "0"}, "whole number above 0"),
        ({"stream": URL, "maxRowsPerBatch": "many"}, "maxRowsPerBatch"),
        ({"stream": URL, "pushdown": "perhaps"}, "true or false"),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, str], message: str):
    with pytest.raises(OutboxError, match=message):
        full_schema(SourceOptions.parse(options))


def test_declared_columns_are_some_of_those_that_there_are():
    options = SourceOptions.parse({"stream": URL, "schema": "total double, id string"})
    whole = full_schema(options)
    assert whole.names[:2] == ["id", "prev_id"]
    assert whole.names[-3:] == ["total", "data_id", "_error"]
    assert wanted_schema(options, to_spark(whole)) == whole
    few = to_spark(whole)
    few.fields = [few["data_id"], few["time"]]
    assert wanted_schema(options, few).names == ["data_id", "time"]
    few.fields[0].name = "discount"
    with pytest.raises(UsageError, match="no column 'discount'"):
        wanted_schema(options, few)


def condition(kind: str, column: str, value: object) -> object:
    """Like one of Spark's filters, which Spark 4.0 does not have."""
    return type(kind, (SimpleNamespace,), {})(attribute=(column,), value=value)


def test_conditions_only_narrow():
    pushed = Pushed()
    for kind, column, value in [
        ("GreaterThan", "id", 10),
        ("GreaterThanOrEqual", "id", 5),
        ("LessThan", "id", 100),
        ("LessThanOrEqual", "id", 200),
        ("Not", "id", 50),
        ("LessThan", "time", datetime(2026, 1, 1, tzinfo=UTC)),
        ("GreaterThan", "time", datetime(2025, 1, 1)),
        ("EqualTo", "subject", "x"),
        ("In", "type", ("a", "b*")),
        ("StringStartsWith", "type", "order."),
    ]:
        pushed.take(condition(kind, column, value))
    assert (pushed.after, pushed.through) == (10, 99)
    assert pushed.since == datetime(2025, 1, 1, tzinfo=UTC)
    assert pushed.types == ("order.*",)
    stream = SimpleNamespace(find=lambda time: 31)
    assert pushed.narrowed(stream, 0, 1000) == (30, 99)
    assert pushed.narrowed(stream, 60, 70) == (60, 70)
    only = Pushed()
    only.take(condition("EqualTo", "id", 7))
    assert only.narrowed(stream, 0, 1000) == (6, 7)
