"""Who the stream is, and whose: two small objects that are created once."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from outbox.errors import StreamCorrupt, StreamMissing, Unsupported, WrongPartner
from stream_store.objects import layout
from stream_store.objects.merged_object import RESTORE

if TYPE_CHECKING:
    from stream_store.objects.store import Store

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Identity:
    format: int
    stream_id: str
    created: str

    @property
    def uuid(self) -> UUID:
        return UUID(self.stream_id)


@dataclass(frozen=True, slots=True)
class Bond:
    """The outbox that the stream belongs to."""

    outbox_id: str
    source: str


def require_conditional_writes(store: Store) -> None:
    """Everything rests on put-if-absent: a store that ignores the condition would let two relays interleave."""
    if store.create(layout.PROBE, b"") and store.create(layout.PROBE, b""):
        raise Unsupported(
            f"{store.url} is kept by a store that ignores conditional writes (it created {layout.PROBE} twice): two relays "
            "could overwrite each other's events. Use a store that honours If-None-Match: * on PUT"
        )


def make_identity(store: Store) -> Identity:
    """The stream's identity, made now when it has none."""
    new = Identity(FORMAT, str(uuid4()), datetime.now(UTC).isoformat())
    store.create(layout.IDENTITY, _encode(asdict(new)))
    return read_identity(store)


def read_identity(store: Store) -> Identity:
    found = _read(store, layout.IDENTITY)
    if found is None:
        if store.last(layout.BATCHES) or store.last(layout.STATES):
            raise StreamCorrupt(f"{store.url} has events and no {layout.IDENTITY}: {RESTORE}")
        raise StreamMissing(f"there is no stream at {store.url}: a relay makes it when it first starts")
    if found.get("format") != FORMAT:
        raise Unsupported(
            f"{layout.IDENTITY} of {store.url} says format {found.get('format')}, this program reads format {FORMAT}: install "
            "the outbox-connector that wrote the stream, or a newer one"
        )
    try:
        identity = Identity(FORMAT, str(UUID(found["stream_id"])), str(found["created"]))
    except (KeyError, ValueError, TypeError) as error:
        raise StreamCorrupt(f"{layout.IDENTITY} of {store.url} cannot be read ({error}): {RESTORE}") from error
    return identity


def read_bond(store: Store) -> Bond | None:
    found = _read(store, layout.BOND)
    try:
        return Bond(found["outbox_id"], found["source"]) if found is not None else None
    except KeyError as error:
        raise StreamCorrupt(f"{layout.BOND} of {store.url} has no {error}: {RESTORE}") from error


def bind(store: Store, bond: Bond) -> None:
    """Bind the stream, once; of two outboxes that try, one is refused."""
    if store.create(layout.BOND, _encode(asdict(bond))):
        return
    bound = read_bond(store)
    if bound is None or bound.outbox_id != bond.outbox_id:
        owner = f"outbox {bound.outbox_id} (source {bound.source})" if bound else "an outbox that is unknown"
        raise WrongPartner(
            f"{store.url} is bound to {owner}, not to {bond.outbox_id} (source {bond.source}): give each outbox a stream of its own"
        )
    if bound.source != bond.source:
        store.replace(layout.BOND, _encode(asdict(bond)))


def _encode(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, indent=2).encode() + b"\n"


def _read(store: Store, name: str) -> dict[str, Any] | None:
    data = store.get(name)
    if data is None:
        return None
    try:
        found = json.loads(bytes(data))
    except ValueError as error:
        raise StreamCorrupt(f"{name} of {store.url} cannot be read ({error}): {RESTORE}") from error
    if not isinstance(found, dict):
        raise StreamCorrupt(f"{name} of {store.url} is no JSON object: {RESTORE}")
    return found
