"""One module per mode of a table: how a batch of rows becomes one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_sink.modes import append, scd2, upsert

if TYPE_CHECKING:
    from spark_sink.mode import TableMode

MODES: dict[str, TableMode] = {"append": append.Append(), "upsert": upsert.Upsert(), "scd2": scd2.Scd2()}
