"""What each mode of a table makes of a stream, in plain Python: one event after the other, no batches.

The tables are those of `tests.sink_case`: the key is the subject, the typed fields are
`order string, total double`, a tombstone deletes its key.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

Event = dict[str, Any]


@dataclass
class Tables:
    """The rows of each table by event ID, and the IDs that went to the dead letters instead."""

    append: dict[int, Event] = field(default_factory=dict)
    typed: dict[int, Event] = field(default_factory=dict)
    upsert: dict[int, Event] = field(default_factory=dict)
    scd2: dict[int, Event] = field(default_factory=dict)
    dead: dict[str, set[int]] = field(default_factory=lambda: {"typed": set(), "upsert": set(), "scd2": set()})


def materialize(events: Iterable[Event]) -> Tables:
    found = Tables()
    latest: dict[str, Event] = {}
    versions: dict[str, list[Event]] = {}
    for event in events:
        event_id, subject = event["id"], event["subject"]
        found.append[event_id] = {name: event[name] for name in ("type", "subject", "data")}
        deletes = event["data"] is None
        fields = {"order": None, "total": None} if deletes else typed(event["data"])
        if fields is None:
            for dead in found.dead.values():
                dead.add(event_id)
            continue
        row = {"subject": subject, **fields}
        found.typed[event_id] = row
        if subject is None:
            found.dead["upsert"].add(event_id)
            found.dead["scd2"].add(event_id)
            continue
        if deletes:
            latest.pop(subject, None)
        else:
            latest[subject] = {**row, "_event_id": event_id}
        _version(versions.setdefault(subject, []), {**row, "_event_id": event_id}, event["time"], deletes)
    found.upsert = _by_id(latest.values())
    found.scd2 = _by_id(row for rows in versions.values() for row in rows)
    return found


def typed(text: str) -> Event | None:
    """The fields of the data; None when one of them is not what the schema says."""
    try:
        data = json.loads(text)
    except ValueError:
        return None
    if not isinstance(data, dict):
        return None
    order, total = data.get("order"), data.get("total")
    if not isinstance(order, str | None) or isinstance(total, bool) or not isinstance(total, int | float | None):
        return None
    return {"order": order, "total": None if total is None else float(total)}


def _version(versions: list[Event], row: Event, time: datetime, deletes: bool) -> None:
    """The next event of a key: it ends the version that is open, and begins one unless it deletes."""
    last = versions[-1] if versions else None
    is_open = last is not None and last["_closed_by"] is None
    if deletes and not is_open:
        return
    start = time if last is None else max(time, last["_valid_to"] or last["_valid_from"])
    if last is not None and is_open:
        last.update(_valid_to=start, _is_current=False, _closed_by=row["_event_id"])
    if not deletes:
        versions.append({**row, "_valid_from": start, "_valid_to": None, "_is_current": True, "_closed_by": None})


def _by_id(rows: Iterable[Event]) -> dict[int, Event]:
    return {row["_event_id"]: _without_id(row) for row in sorted(rows, key=lambda row: row["_event_id"])}


def _without_id(row: Mapping[str, Any]) -> Event:
    return {name: value for name, value in row.items() if name != "_event_id"}
