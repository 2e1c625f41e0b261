"""Large writes past the page cache.

A backlog writes frames of megabytes. Through the page cache the kernel first has to find a
page for each 4 KiB of them; where memory is virtual that costs more than all the rest of an
append (run: 0.44 s of CPU for 200 MB, against 0.01 s with O_DIRECT). The blocks that the frame
shares with its neighbours still go through the cache, so the two ways never meet in one block.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Offsets, lengths and addresses must be multiples of the device's block, at most this.
BLOCK_BYTES = 4096
LARGE_BYTES_MIN = 2**20
# The buffer stays for the thread's life: what is larger, a segment in recovery, goes through the cache.
LARGE_BYTES_MAX = 24 * 2**20
O_DIRECT: int = getattr(os, "O_DIRECT", 0)

# One buffer a thread, used again and again: fresh memory would cost what we want to save.
_staging = threading.local()
_refused_devices: set[int] = set()


def write_direct(fd: int, views: Sequence[memoryview], offset: int) -> bool:
    """Write all of `views` at `offset`; False when this file cannot be written so, and nothing is written."""
    length = sum(len(view) for view in views)
    device = os.fstat(fd).st_dev
    if not O_DIRECT or not LARGE_BYTES_MIN <= length <= LARGE_BYTES_MAX or device in _refused_devices:
        return False
    # The frame lies in the buffer as it will lie in the file, block by block.
    shift = offset % BLOCK_BYTES
    buffer = _buffer()
    at = shift
    for view in views:
        buffer[at : at + len(view)] = view
        at += len(view)
    first = BLOCK_BYTES if shift else 0
    last = at - at % BLOCK_BYTES
    start = offset - shift
    if not _write_blocks(fd, buffer[first:last], start + first):
        _refused_devices.add(device)
        return False
    _write(fd, buffer[shift:first], offset)
    _write(fd, buffer[last:at], start + last)
    return True


def _write_blocks(fd: int, blocks: memoryview, offset: int) -> bool:
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | O_DIRECT)
        while blocks:
            written = os.pwrite(fd, blocks, offset)
            if written % BLOCK_BYTES:
                # Nearly out of room. The rest through the cache fails with the reason.
                fcntl.fcntl(fd, fcntl.F_SETFL, flags)
            blocks, offset = blocks[written:], offset + written
    except OSError as error:
        if error.errno == errno.EINVAL:
            return False  # the file system knows no direct writes
        raise
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    return True


def _write(fd: int, rest: memoryview, offset: int) -> None:
    while rest:
        written = os.pwrite(fd, rest, offset)
        rest, offset = rest[written:], offset + written


def _buffer() -> memoryview:
    buffer: memoryview | None = getattr(_staging, "buffer", None)
    if buffer is None:
        # Anonymous memory starts at a page, which is as large as any block.
        buffer = _staging.buffer = memoryview(mmap.mmap(-1, LARGE_BYTES_MAX + BLOCK_BYTES))
    return buffer
