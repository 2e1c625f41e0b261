"""`readers/`: how far each known table and consumer group has come, one small object each."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from outbox.errors import StreamUnavailable
from stream_store.objects import layout
from stream_store.readers import Reader

if TYPE_CHECKING:
    from stream_store.objects.store import Store
    from stream_store.readers import Kind


def report(store: Store, kind: Kind, name: str, through: int) -> None:
    said = {"kind": kind, "name": name, "through": through, "reported_at": datetime.now(UTC).isoformat()}
    store.replace(_report_of(kind, name), json.dumps(said).encode())


def forget(store: Store, kind: Kind, name: str) -> None:
    store.delete([_report_of(kind, name)])


def readers(store: Store) -> list[Reader]:
    found = [_reader(store, listed.name) for listed in store.list(layout.READERS)]
    return [each for each in found if each is not None]


def _reader(store: Store, name: str) -> Reader | None:
    """What a report says; None when somebody has just removed it."""
    data = store.get(name)
    if data is None:
        return None
    try:
        said = json.loads(bytes(data))
        return Reader(said["kind"], said["name"], int(said["through"]), datetime.fromisoformat(said["reported_at"]))
    except (ValueError, KeyError, TypeError) as error:
        raise StreamUnavailable(
            f"{name} of {store.url} cannot be read ({error}): its reader writes it again when it gets on; remove the object if "
            "that table or group is no more"
        ) from error


def _report_of(kind: Kind, name: str) -> str:
    return f"{layout.READERS}/{hashlib.sha256(f'{kind}:{name}'.encode()).hexdigest()[:32]}.json"
