"""The name of a Delta table: a path or a catalog name, the same however it is spelled."""

from __future__ import annotations

from pathlib import Path

import pytest

from outbox.errors import UsageError
from spark_sink.names import TableName


@pytest.mark.parametrize(
    "text",
    ["/lake/orders", "/lake/orders/", "/lake//orders", "/lake/x/../orders", "/lake/./orders", "file:/lake/orders", "file:///lake/x/../orders/"],
)  # fmt: skip
def test_a_place_of_this_machine_has_one_identity(text):
    name = TableName.parse(text)
    assert name.identity == "/lake/orders"
    assert name.folder == Path("/lake/orders")
    assert ".." not in name.text


def test_a_path_may_be_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert TableName.parse("./orders/").text == TableName.parse("x/../orders/").text == str(tmp_path / "orders")


@pytest.mark.parametrize(
    ("text", "identity"),
    [
        ("s3://bucket/lake//x/../orders/", "s3://bucket/lake/orders"),
        ("s3a://bucket", "s3a://bucket"),
        ("main.sales.orders", "main.sales.orders"),
        ("`main`.`sales`.orders", "main.sales.orders"),
        ("sales.`or.ders`", "sales.`or.ders`"),
        ("`or``ders`", "`or``ders`"),
    ],
)
def test_what_others_know_a_table_by(text, identity):
    name = TableName.parse(text)
    assert name.identity == identity
    assert TableName.parse(identity).sql == name.sql


@pytest.mark.parametrize("text", ["", " ", "a.b.c.d", "a\nb", "..."])
def test_what_names_no_table_is_refused(text):
    with pytest.raises(UsageError):
        TableName.parse(text)
