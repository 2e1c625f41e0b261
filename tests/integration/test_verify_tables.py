"""`verify` of Delta tables: each is what the stream makes of it, or it says which IDs are wrong, and how."""

from __future__ import annotations

import json

import pytest

import cli.main
from spark_sink import digest
from spark_sink.materializer import Materializer
from spark_sink.verification import TableVerification, verify_tables
from stream_store import open_stream
from tests.integration.lake import EVENTS, MODES, OPTIONS, Lake, Vandal, make_lake, order, spec_of
from tests.integration.relays import emit, installed, relay_once
from tests.streams import write_stream


@pytest.fixture(scope="module")
def made(spark, tmp_path_factory) -> Lake:
    return make_lake(spark, tmp_path_factory.mktemp("lake"))


@pytest.fixture
def lake(made, tmp_path) -> Lake:
    return made.copy(tmp_path / "lake")


@pytest.fixture
def narrow_ranges(monkeypatch):
    """Several ranges of IDs, some of which agree."""
    monkeypatch.setattr(digest, "RANGE_IDS", 3)


def verified(spark, lake: Lake, mode: str) -> TableVerification:
    [found] = verify_tables(spark, lake.url, [lake.table(mode)])
    return found


def wrong(found: TableVerification) -> dict[str, list[int]]:
    """The IDs that are named, by kind; each of them is counted once."""
    ids = {kind: getattr(found, f"{kind}_ids") for kind in ("lost", "duplicated", "conflicting", "extra")}
    assert all(getattr(found, kind) == len(named) for kind, named in ids.items()), found
    return {kind: named for kind, named in ids.items() if named}


@pytest.mark.compat
def test_tables_that_are_right_and_one_event_behind(spark, lake, narrow_ranges):
    write_stream(lake.url + OPTIONS, [order("f", 12)])
    told: dict[str, tuple[int, int]] = {}
    names = [lake.table(mode) for mode in MODES]
    proven = verify_tables(spark, lake.url, names, lambda what, done, total: told.update({what: (done, total)}))
    found = {each.mode: each for each in proven}
    assert list(told) == [f"proving {name}" for name in names]
    assert all(done == total for done, total in told.values()), told
    for each in found.values():
        assert each.ok, each
        assert (each.bookmark, each.bookmark_noted, each.behind) == (11, 11, 1)
        assert (each.events, each.not_for_table, each.dead_letters) == (9, 0, 0)
        assert each.events == each.without_row + each.rows
    assert {mode: each.rows for mode, each in found.items()} == {"append": 9, "upsert": 4, "scd2": 8}


def test_append_names_what_is_lost_doubled_changed_or_nobodys(spark, lake, narrow_ranges):
    vandal = Vandal(lake.table("append"))
    vandal.remove("id = 3")
    vandal.add(vandal.rows("id", 6))
    vandal.change("id = 7", subject="'x'")
    vandal.add(vandal.rows("id", 10), id=8)
    vandal.add(vandal.rows("id", 10), id=99)
    found = verified(spark, lake, "append")
    assert not found.ok
    assert wrong(found) == {"lost": [3], "duplicated": [6], "conflicting": [7], "extra": [8, 99]}
    assert "not ours" in found.problems[0]


def test_upsert_names_the_events_of_wrong_rows(spark, lake, narrow_ranges):
    vandal = Vandal(lake.table("upsert"))
    vandal.remove("_event_id = 10")
    vandal.change("subject = 'a'", _event_id="3")
    vandal.change("_event_id = 11", subject="'another'")
    vandal.add(vandal.rows("_event_id", 5))
    found = verified(spark, lake, "upsert")
    assert not found.ok
    assert wrong(found) == {"lost": [7, 10], "duplicated": [5], "conflicting": [11], "extra": [3]}


def test_scd2_names_wrong_intervals_and_versions(spark, lake, narrow_ranges):
    vandal = Vandal(lake.table("scd2"))
    vandal.change("_event_id = 1", _valid_to="_valid_from")
    vandal.change("_event_id = 7", _closed_by="11")
    vandal.remove("_event_id = 3")
    vandal.add(vandal.rows("_event_id", 2), _event_id=4)
    vandal.add(vandal.rows("_event_id", 2))
    found = verified(spark, lake, "scd2")
    assert not found.ok
    assert wrong(found) == {"lost": [3], "duplicated": [2], "conflicting": [1, 7], "extra": [4]}


def test_a_commit_of_somebody_else_that_left_every_row_right_is_a_note(spark, lake):
    Vandal(lake.table("append")).change("id = 2", subject="subject")
    found = verified(spark, lake, "append")
    assert found.ok, found
    assert "version 2 is a UPDATE that is not ours" in found.notes[0]


def test_nulls_that_change_places_are_seen(spark, lake):
    vandal = Vandal(lake.table("append"))
    vandal.change("id = 2", data="NULL", headers="data")
    assert wrong(verified(spark, lake, "append")) == {"conflicting": [2]}


def test_dead_letters_are_accounted_for_exactly_once(spark, tmp_path):
    lake = Lake(tmp_path)
    write_stream(lake.url, EVENTS)
    table = spec_of(tmp_path / "typed", types=("order.*",), schema="order string, total double")
    with Materializer(spark, lake.url, [table]) as materializer:
        materializer.run_once()
    found = verified(spark, lake, "typed")
    assert found.ok, found
    assert (found.events, found.not_for_table, found.dead_letters, found.rows) == (9, 1, 1, 7)

    letters = Vandal(table.dead_letter_table)
    letters.add(letters.rows("id", 5))
    letters.add(letters.rows("id", 5).slice(0, 1), id=6)
    letters.add(letters.rows("id", 5).slice(0, 1), id=7)
    found = verified(spark, lake, "typed")
    assert wrong(found) == {"duplicated": [5], "extra": [7]}
    text = "\n".join(found.problems)
    assert "event 5 is among the dead letters more than once" in text
    assert "dead letter 6 is of no event that is for this table" in text
    assert "event 7 is in the table and among its dead letters" in text

    letters.remove()
    found = verified(spark, lake, "typed")
    assert wrong(found) == {"lost": [5]}
    assert "event 5 is unfit for the table and not among its dead letters" in found.problems[0]


def test_rich_tables_raise_no_false_alarm(spark, tmp_path):
    """Nested and inferred fields, a schema that grows, projections, a composite key in folders, quarantine."""
    lake = Lake(tmp_path)

    def event(number: int, region: str | None, **more: object) -> dict[str, object]:
        data = {"no": number % 3, "region": region, "total": number / 4, "tags": ["x", None], "at": {"n": None}, **more}
        return {"subject": f"s{number % 3}", "data": data, "headers": {"traceparent": f"t{number}"}}

    schema = "no int, region string, total decimal(12,4), tags array<string>, at struct<n:int,m:string>"
    tables = [
        spec_of(tmp_path / "inferred", schema="infer"),
        spec_of(
            tmp_path / "keyed", mode="upsert", schema=schema, key=("no", "region"), partition_by=("region",),
            expect={"not too much": "total < 4"}, deletes="total = 3",
        ),
        spec_of(
            tmp_path / "projected", mode="scd2", schema=schema, key=("who",),
            select=("subject AS who", "total * 2 AS `twice-total`", "size(tags) AS tags", "at.m", "upper(region) AS r"),
        ),
    ]  # fmt: skip
    regions = ["eu", "", None, "us/ca"]
    for first in (1, 11):
        extra = {"late": {"field": [1.5]}} if first > 1 else {}
        write_stream(lake.url, [event(number, regions[number % 4], **extra) for number in range(first, first + 10)])
        with Materializer(spark, lake.url, tables) as materializer:
            materializer.run_once()
    found = verify_tables(spark, lake.url, [table.table for table in tables])
    assert [each.problems for each in found] == [[], [], []]
    assert all(each.ok for each in found), found
    inferred, keyed, projected = found
    assert (inferred.rows, keyed.dead_letters, projected.rows) == (20, 5, 20)
    # Keys (no, region) of totals below 4; region "" is kept as NULL, number 12 deletes its key.
    keys = {(number % 3, regions[number % 4] or None): number for number in range(1, 16)}
    assert keyed.rows == len({key for key, number in keys.items() if number != 12})


def test_a_trimmed_stream_proves_what_it_still_can(spark, lake):
    with open_stream(lake.url + OPTIONS, "write") as stream:
        stream.trim(5)
    found = {mode: verified(spark, lake, mode) for mode in MODES}
    for each in found.values():
        assert each.ok, each
        assert (each.proven_after, each.events) == (5, 4)
        assert "trimmed through 5" in each.notes[0]
    # Of scd2 also the version that an event behind the trimmed ones has closed.
    assert {mode: (each.without_row, each.rows, each.rows_unproven) for mode, each in found.items()} == {
        "append": (0, 4, 5),
        "upsert": (1, 3, 1),
        "scd2": (0, 5, 3),
    }

    vandal = Vandal(lake.table("append"))
    vandal.add(vandal.rows("id", 2))
    assert wrong(verified(spark, lake, "append")) == {"duplicated": [2]}
    vandal = Vandal(lake.table("upsert"))
    vandal.add(vandal.rows("_event_id", 7), _event_id=1)
    assert wrong(verified(spark, lake, "upsert")) == {"extra": [1]}
    vandal = Vandal(lake.table("scd2"))
    vandal.change("_event_id = 3", _closed_by="NULL", _valid_to="NULL", _is_current="true")
    assert wrong(verified(spark, lake, "scd2")) == {"conflicting": [3]}


def test_what_the_sink_would_stop_at_is_a_finding(spark, lake, tmp_path):
    Vandal(lake.table("append")).restore(0)
    found = verified(spark, lake, "append")
    assert wrong(found) == {"lost": [1, 2, 3, 4, 5, 6, 7, 10, 11]}
    assert "RESTORE" in found.problems[0]

    found = verified(spark, lake, "none")
    assert not found.ok
    assert "there is no table" in found.problems[0]

    write_stream(f"file://{tmp_path / 'other'}", EVENTS, outbox_id="6f6b4b1e-0000-4000-8000-000000000002")
    [found] = verify_tables(spark, f"file://{tmp_path / 'other'}", [lake.table("upsert")])
    assert not found.ok
    assert found.bookmark is None


def test_the_program_proves_out_table_stream_and_tables(spark, sqlite_url, stream_url, tmp_path, capsys):
    outbox = installed(sqlite_url, stream_url)
    emit(outbox, 5)
    relay_once(outbox)
    table = spec_of(tmp_path / "events")
    with Materializer(spark, stream_url, [table]) as materializer:
        materializer.run_once()
    capsys.readouterr()

    def outbox_verify(*flags: str) -> tuple[int, str]:
        code = cli.main.run(["verify", "--stream", stream_url, *flags])
        return code, capsys.readouterr().out

    code, text = outbox_verify("--database", sqlite_url, "--table", str(table.table), "--json")
    document = json.loads(text)
    assert code == 0, text
    assert (document["ok"], document["lost"], document["extra"], document["out_table"]) == (True, 0, 0, "outbox")
    [proven] = document["tables"]
    assert (proven["table"], proven["ok"], proven["rows"]) == (str(table.table), True, 5)

    Vandal(table.table).remove("id = 4")
    code, text = outbox_verify("--table", str(table.table), "--json")
    document = json.loads(text)
    assert code == 3
    assert (document["ok"], document["lost"], document["lost_ids"], document["out_table"]) == (False, 1, [4], None)

    config = tmp_path / "outbox.toml"
    config.write_text(f'[[outbox]]\nstream = "{stream_url}"\n[[outbox.table]]\ntable = "{table.table}"\n')
    code, text = outbox_verify("--config", str(config))
    assert code == 3
    assert "NOT OK" in text
    assert "not looked at: no database was named" in text
    assert f"{table.table}: lost" in text
