"""obstore by itself: the same bytes put and got, without a chain, a check or a second writer in mind."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import obstore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from obstore.store import ObjectStore


def put_seconds(store: ObjectStore, payloads: Sequence[bytes]) -> float:
    """One object after the other, put-if-absent, as a relay would have to."""
    started = time.perf_counter()
    for number, payload in enumerate(payloads):
        obstore.put(store, f"bare/{number:09d}", payload, mode="create", use_multipart=False)
    return time.perf_counter() - started


def get_seconds(store: ObjectStore, count: int) -> float:
    """One object after the other, whole."""
    started = time.perf_counter()
    for number in range(count):
        memoryview(obstore.get(store, f"bare/{number:09d}").bytes())
    return time.perf_counter() - started
