"""The events of a lot as text, as they lie in the state database: `1-500,502` or, with subjects, `1:77,2:91`."""

from __future__ import annotations

from functools import lru_cache


def encode(ids: tuple[int, ...], keys: tuple[int, ...]) -> str:
    if keys:
        return ",".join(f"{event_id}:{key}" for event_id, key in zip(ids, keys, strict=True))
    if ids[-1] - ids[0] == len(ids) - 1:  # IDs strictly increase, so none is missing
        return f"{ids[0]}-{ids[-1]}"
    parts = []
    first = last = ids[0]
    for event_id in ids[1:]:
        if event_id != last + 1:
            parts.append(f"{first}-{last}")
            first = event_id
        last = event_id
    parts.append(f"{first}-{last}")
    return ",".join(parts)


# Every claim reads all lots of its group, most of which have not changed since the last one.
@lru_cache(maxsize=256)
def decode(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    parts = text.split(",")
    if ":" in parts[0]:
        pairs = [part.split(":") for part in parts]
        return tuple(int(event_id) for event_id, _ in pairs), tuple(int(key) for _, key in pairs)
    ids: list[int] = []
    for part in parts:
        first, _, last = part.partition("-")
        ids.extend(range(int(first), int(last) + 1))
    return tuple(ids), ()
