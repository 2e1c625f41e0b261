"""Every error of the product, as one tree.

OutboxError                     exit code 1
├── UsageError                  2   the command line or outbox.toml is wrong
│   └── StreamRefused
├── EmitError                   1   nothing was written to the out table
│   ├── InvalidEvent
│   └── NoTransaction
├── SchemaError                 1   the out table is missing, old, or not ours
├── CheckFailed                 3   `outbox check` or `outbox verify` found something
├── StreamMissing               1   there is no stream at the URL
├── GroupMissing                1   there is no consumer group of that name
├── Trimmed                     1   the stream no longer holds the events asked for
├── Transient                   75  try again: the retry policy of the relay does
│   ├── DatabaseUnavailable
│   ├── StreamUnavailable
│   ├── StreamLocked
│   ├── LeaseLost
│   ├── StaleTail
│   ├── DeliveryLost
│   ├── TableUnavailable
│   └── TableConflict
└── Terminal                    4   restarting cannot help: a person has to look
    ├── TailLost
    ├── LateRow
    ├── ConflictingRow
    ├── ExplicitId
    ├── SequenceReset
    ├── StreamCorrupt
    ├── WrongPartner
    ├── ServerChanged
    ├── TableChanged
    ├── EventsTrimmed
    ├── ExpectationFailed
    ├── TransactionEnded
    ├── TooManyParked
    └── Unsupported

Whether to retry is decided by `Transient` and `Terminal` alone. A message says what
happened, to which ID or file, and what to do next.
"""


class OutboxError(Exception):
    """The root of all errors that this package raises on purpose."""

    exit_code = 1


class UsageError(OutboxError):
    """A flag, an environment variable or a key of outbox.toml is wrong."""

    exit_code = 2


class StreamRefused(UsageError):
    """The store of the stream refuses us: credentials, permissions, or there is no such bucket."""


class EmitError(OutboxError):
    """The event was refused before anything was written."""


class InvalidEvent(EmitError, ValueError):
    """The event breaks a rule of its format: type, JSON, size, header names."""


class NoTransaction(EmitError):
    """There is no open transaction for the event to be part of."""


class SchemaError(OutboxError):
    """The out table is not installed, of another version, or not made by us."""


class CheckFailed(OutboxError):
    """A check or a verification found something wrong."""

    exit_code = 3


class StreamMissing(OutboxError):
    """There is no stream at the URL, and it was not to be made."""


class GroupMissing(OutboxError):
    """There is no consumer group of that name, or it was deleted meanwhile."""


class Trimmed(OutboxError):
    """The events asked for were trimmed: the stream no longer holds them."""


class Transient(OutboxError):
    """Something that passes. Safe to try again from the start path."""

    exit_code = 75


class DatabaseUnavailable(Transient):
    """The database does not answer, or ended our session."""


class StreamUnavailable(Transient):
    """The stream cannot be written just now (disk full, I/O error, broker away)."""


class StreamLocked(Transient):
    """Another process holds the stream's writer lock."""


class LeaseLost(Transient):
    """Another relay leads now."""


class StaleTail(Transient):
    """Another relay has appended or cleaned up since we looked."""


class DeliveryLost(Transient):
    """The group has given a delivery to another member: what was done for it must not be committed."""


class TableUnavailable(Transient):
    """A Delta table cannot be made durable just now (I/O error)."""


class TableConflict(Transient):
    """Another writer committed to the Delta table first; nothing of ours was written."""


class Terminal(OutboxError):
    """Going on could lose or double events. A person has to look first."""

    exit_code = 4


class TailLost(Terminal):
    """The stream went back in time: it misses events it once acknowledged."""


class LateRow(Terminal):
    """A row appeared at or below the stream's tail that the stream never had."""


class ConflictingRow(Terminal):
    """The stream holds other content under a row's ID."""


class ExplicitId(Terminal):
    """A row carries an ID that the sequence has not given out."""


class SequenceReset(Terminal):
    """The sequence stands below IDs that it has given out before."""


class StreamCorrupt(Terminal):
    """Bytes of the stream that were acknowledged cannot be read back."""


class WrongPartner(Terminal):
    """Outbox and stream are bound to other partners."""


class ServerChanged(Terminal):
    """The database is another server, or another timeline of it, than before."""


class TableChanged(Terminal):
    """A Delta table is not what our last commit left: restored, replaced, cloned, dropped, written by others."""


class EventsTrimmed(Terminal):
    """The stream no longer holds events that a table, a group or an inbox still needs."""


class ExpectationFailed(Terminal):
    """Rows break an expectation that is to stop the sink."""


class TransactionEnded(Terminal):
    """A handler committed or rolled back the transaction that it was lent."""


class TooManyParked(Terminal):
    """So many events are parked that the handler, not the events, must be at fault."""


class Unsupported(Terminal):
    """The database or the stream is set up in a way that makes the guarantee impossible."""
