"""An error of ours that a worker of Spark has raised is told from what Spark makes of it."""

from __future__ import annotations

import pytest

from outbox.errors import OutboxError, StreamCorrupt, TailLost
from spark_sink.conflicts import retrying
from spark_sink.worker_errors import ours_of

PythonException = type("PythonException", (Exception,), {"__module__": "pyspark.errors.exceptions.captured"})

# As Spark has it: a worker's traceback inside its own, once more as the cause.
TEXT = """Job aborted due to stage failure: Task 0 in stage 4.0 failed 1 times: PythonException: Traceback (most recent call last):
  File "worker.py", line 2044, in main
outbox.errors.Trimmed: the first try

During handling of the above exception, another exception occurred:

outbox.errors.StreamCorrupt: /stream is damaged at byte 12: restore it

	at org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:566)
"""


def test_the_last_error_of_ours_is_found_with_its_class():
    found = ours_of(PythonException(TEXT))
    assert isinstance(found, StreamCorrupt)
    assert str(found) == "/stream is damaged at byte 12: restore it"
    assert found.exit_code == 4


@pytest.mark.parametrize(
    "error",
    [
        ValueError(TEXT),  # not of Spark
        PythonException("outbox.errors.Unheard: of"),
        PythonException("outbox.errors.re: not an error"),
        PythonException("ValueError: of a user's transform"),
    ],
)
def test_other_errors_are_left_alone(error):
    assert ours_of(error) is None


def test_what_is_tried_again_ends_with_the_error_of_ours():
    def fail() -> None:
        raise PythonException("outbox.errors.TailLost: it went back")

    with pytest.raises(TailLost, match="it went back") as found:
        retrying()(fail)
    assert isinstance(found.value, OutboxError)
