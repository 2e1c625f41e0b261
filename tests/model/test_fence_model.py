"""The model test: the fence, the chain and the cleaner through every interleaving, up to a bound.

The real `connector/fence.py` decides; everything around it is modelled, one atomic
interaction a step: writers (take the lock, draw an ID, insert, draw without a row, commit,
roll back, prepare, leave, commit or roll back what was prepared; visible first, lock
released later), the relay's loop, its appender, its cleaner, a second relay, crashes of
relays and of the server, a power loss under the stream, a stream that loses its tail.

`CONFIGURATIONS` states the bounds: sessions x transactions of each, IDs in all and by
transaction, relays, and which accidents may happen. A crash of a relay may happen at every
step and any number of times; a server crash, and a stream that goes back in time, once.
Within these bounds the search is complete; each test prints how many states it saw: about
5 million in all, and 28 million more within the wider bounds that are marked long.

In every state (the numbers are those of DESIGN.md, section 4): each event is a committed
row (1), IDs strictly increase (2), no committed row is recorded as dead, before or after
its commit (3), nothing is deleted before it is durable (4), duplicates change nothing (5),
no relay stops with an error unless the stream lost its tail, and then with TAIL_LOST (6),
`deleted_through` is exact, and below the durable tail unless the stream lost it (7).
And for liveness: from every state without a transaction in flight, a relay left to itself
gets every committed row into the stream and out of the table, or says TAIL_LOST; and a
round waits for nobody who came after its list was made, even if they never end.

What is abstracted: the content of a row is a function of its ID (CONFLICT belongs to
`tests/unit/test_outcome.py`), the lease (it makes nothing safe), trimming, and the server's
identity. MariaDB names threads, so a thread that is in its next transaction at every look
holds a round up: that case is the barrier's.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pytest

from outbox.batch import SCHEMA, EventBatch
from stream_store.outcome import judge
from tests.model.explore import Checker
from tests.model.invariants import Violation
from tests.model.mutants import MUTANTS, Mutant
from tests.model.rules import Rules
from tests.model.world import Bounds, World, append, highest, ids_of

PG: Final = "postgresql"
MYSQL: Final = "mysql"
MARIADB: Final = "mariadb"

CONFIGURATIONS = {
    # Writers against one relay.
    "3 writers, the relay reads on while it appends": Bounds(PG, sessions=3, transactions=1, ids=3, pipelined=True),
    "3 writers that may prepare, a listing that is torn": Bounds(
        PG, sessions=3, transactions=1, ids=2, prepares=True, torn_listing=True, watch_newcomers=True
    ),
    "2 writers with a second transaction each, nextval apart from INSERT": Bounds(
        PG, sessions=2, transactions=2, ids=3, split_insert=True, watch_newcomers=True
    ),
    "2 writers with 2 IDs each, small reads in parts": Bounds(
        PG, sessions=2, transactions=1, ids=4, ids_per_transaction=2, read_limit=2, part_rows=1
    ),
    "MariaDB, 3 writers with XA": Bounds(
        MARIADB, sessions=3, transactions=1, ids=2, prepares=True, watch_newcomers=True
    ),
    "MySQL, 2 writers with 2 XA transactions each": Bounds(
        MYSQL, sessions=2, transactions=2, ids=2, prepares=True, watch_newcomers=True
    ),
    "MariaDB by barrier, 3 writers with XA": Bounds(
        MARIADB, sessions=3, transactions=1, ids=3, prepares=True, fence="barrier"
    ),
    "MariaDB by list and barrier, 2 writers with XA": Bounds(
        MARIADB, sessions=2, transactions=1, ids=2, prepares=True, fence="both", crashes=True
    ),
    "SQLite, 2 writers with 2 transactions each": Bounds(
        "sqlite", sessions=2, transactions=2, ids=3, ids_per_transaction=2, cleaner=True, crashes=True, pipelined=True
    ),
    # With a server that crashes once.
    "PostgreSQL crashes, the sequence goes back": Bounds(
        PG, sessions=2, transactions=2, ids=3, restarts=1, cleaner=True, crashes=True
    ),
    "PostgreSQL crashes, prepared transactions stay": Bounds(
        PG, sessions=2, transactions=1, ids=2, prepares=True, restarts=1, cleaner=True, crashes=True, pipelined=True
    ),
    "MariaDB crashes, XA transactions stay": Bounds(
        MARIADB, sessions=2, transactions=2, ids=2, prepares=True, restarts=1, cleaner=True, crashes=True
    ),
    # Two relays, their cleaners, and accidents.
    "2 relays, the stream loses its tail": Bounds(
        PG, sessions=2, transactions=1, ids=2, relays=2, cleaner=True, crashes=True, tail_loss=True, pipelined=True
    ),
    "2 relays, 2 writers with 2 IDs each": Bounds(
        PG, sessions=2, transactions=1, ids=3, ids_per_transaction=2, relays=2, cleaner=True, crashes=True
    ),
    "2 relays, the power goes and the tail is lost": Bounds(
        PG, sessions=2, transactions=1, ids=2, relays=2, cleaner=True, crashes=True, power_loss=True, tail_loss=True
    ),
    "2 relays and a writer lock as file:// has it": Bounds(
        PG,
        sessions=2,
        transactions=1,
        ids=3,
        ids_per_transaction=2,
        relays=2,
        cleaner=True,
        crashes=True,
        tail_loss=True,
        exclusive=True,
    ),
}

SLOW_CONFIGURATIONS = {
    "3 writers with 3 IDs that may prepare, a listing that is torn": Bounds(
        PG, sessions=3, transactions=1, ids=3, prepares=True, torn_listing=True, watch_newcomers=True
    ),
    "MariaDB, 3 writers with 3 IDs and XA": Bounds(
        MARIADB, sessions=3, transactions=1, ids=3, prepares=True, watch_newcomers=True
    ),
    "4 writers": Bounds(PG, sessions=4, transactions=1, ids=4),
    "3 writers, 2 relays and their cleaners": Bounds(PG, sessions=3, transactions=1, ids=3, relays=2, cleaner=True),
    "2 relays, PostgreSQL crashes": Bounds(
        PG, sessions=2, transactions=1, ids=2, prepares=True, restarts=1, relays=2, cleaner=True, crashes=True
    ),
    "2 relays, 2 writers with 2 IDs each, the stream loses its tail": Bounds(
        PG,
        sessions=2,
        transactions=1,
        ids=3,
        ids_per_transaction=2,
        relays=2,
        cleaner=True,
        crashes=True,
        tail_loss=True,
    ),
}


def check(name: str, bounds: Bounds) -> None:
    print(f"\n{name}: {Checker(bounds).run()}")


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_interleaving_breaks_an_invariant(name: str) -> None:
    check(name, CONFIGURATIONS[name])


@pytest.mark.long
@pytest.mark.parametrize("name", SLOW_CONFIGURATIONS)
def test_no_interleaving_breaks_an_invariant_within_wider_bounds(name: str) -> None:
    check(name, SLOW_CONFIGURATIONS[name])


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_weakened_rule_is_caught(mutant: Mutant) -> None:
    with pytest.raises(Violation) as caught:
        Checker(mutant.bounds, mutant.rules, mutant.promises).run()
    assert caught.value.invariant.startswith(mutant.breaks), caught.value
    assert caught.value.trace, "a violation comes with the steps that lead there"
    print(f"\n{mutant.name} breaks {caught.value}")


@pytest.mark.parametrize(
    "mutant", {mutant.bounds: mutant for mutant in MUTANTS}.values(), ids=lambda mutant: f"as for {mutant.name}"
)
def test_unweakened_rules_hold_where_a_mutant_falls(mutant: Mutant) -> None:
    Checker(mutant.bounds).run()


def test_file_lock_makes_the_order_of_the_start_path_harmless() -> None:
    """Where another relay can append meanwhile, deleted_through must be read before the tail, and
    leftovers be offered behind their own first ID less one (there are mutants for both)."""
    bounds = CONFIGURATIONS["2 relays and a writer lock as file:// has it"]
    Checker(bounds, Rules(reads_deleted_through_before_tail=False, offers_behind_first_id=False)).run()


def test_violation_names_the_steps_that_lead_to_it() -> None:
    bounds = Bounds(PG, sessions=2, transactions=1, ids=2)
    with pytest.raises(Violation, match=r"\[1\] is committed, and recorded as dead below the tail 2") as caught:
        Checker(bounds, Rules(admit=lambda fence, tail, deleted_through, ids: len(ids))).run()
    assert [label for label in caught.value.trace if "commits" in label] == [
        "session 1: commits, [2] visible",
        "session 0: commits, [1] visible",
    ]
    assert "appender 0: appends [2] behind 0: APPENDED" in caught.value.trace


def test_model_appends_as_the_streams_judge_does() -> None:
    """Every stream and every batch of up to four IDs: the model's outcome is the product's."""

    def rows(mask: int) -> pa.RecordBatch:
        found = [{"id": i, "type": f"event {i}", "time": i} for i in ids_of(mask)]
        return pa.RecordBatch.from_pylist(found, schema=SCHEMA)

    everything = range(0, 1 << 5, 2)
    for stream in everything:
        held = pa.Table.from_batches([rows(stream)])
        for batch in everything[1:]:
            for prev_id in range(ids_of(batch)[0]):
                answer = judge(EventBatch(prev_id, rows(batch)), highest(stream), 0, lambda first, last: held)  # noqa: B023
                outcome, after = append(World(stream=stream), prev_id, batch)
                assert outcome == answer.outcome.name, (stream, batch, prev_id)
                assert highest(after.stream) == answer.tail
                assert (after.stream != stream) == (outcome == "APPENDED")
