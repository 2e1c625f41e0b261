"""The Python on docs/groups.md runs, apart from that it would go on for ever."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import sqlalchemy

from stream_store import Group
from tests.program import ROOT


def test_the_examples_run(make_stream: Callable[..., str], tmp_path: Path) -> None:
    url = make_stream(*({"subject": f"s{n % 3}", "data": {"n": n}} for n in range(1, 31)))
    handled: list[int] = []
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'stream.groups.db'}")
    names = {
        "send_mail": lambda event: handled.append(event.id),
        "engine": engine,
        "insert_orders": lambda connection, batch: handled.extend(batch.ids.to_pylist()),
        "ready": lambda event: event.id != 7,
        "handle": lambda event: handled.append(event.id),
        "handle_rows": lambda rows: rows.column("id").to_pylist()[:1],
    }
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "groups.md").read_text("utf-8"), flags=re.DOTALL)
    assert len(blocks) == 4
    for number, block in enumerate(blocks):
        ending = block.replace("file:///var/lib/outbox/shop", url)
        ending = re.sub(
            r"\.(consume\w*)\(", r".\1(wait_seconds=0, batch_rows=", ending.replace("batches(", "batches( ")
        )
        ending = re.sub(r"\.consume\(wait_seconds=0, batch_rows=", ".consume(wait_seconds=0, ", ending)
        if number:
            names["group"].reset("earliest")  # type: ignore[attr-defined]
        exec(compile(ending, f"block {number + 1}", "exec"), names)
    assert isinstance(names["group"], Group)
    assert sorted(handled[:30]) == list(range(1, 31)), "the first example"
    assert sorted(handled[30:60]) == list(range(1, 31)), "in the transaction of their effects"
    assert 7 not in handled[60:], "it was not ready"
    names["group"].close()
    engine.dispose()
