"""The server's scripts: each is one step for everybody who looks, and in the server's log."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and the name that the server gives it."""

    name: str
    text: str
    sha: str

    @classmethod
    def read(cls, name: str) -> Script:
        text = (Path(__file__).parent / f"{name}.lua").read_text("utf-8")
        # SHA-1 is what the server names scripts by.
        return cls(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


CREATE = Script.read("create")
APPEND = Script.read("append")
CHANGE = Script.read("change")
TRIM = Script.read("trim")
TAKE = Script.read("take")
ERASE = Script.read("erase")
