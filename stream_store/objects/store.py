"""The few requests that the stream makes of an object store, and what their failures mean."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import obstore
from obstore import exceptions

from outbox.errors import OutboxError, StreamRefused, StreamUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from obstore.store import ObjectStore

_DENIED = "the credentials may not do this: grant read, write, list and delete below the prefix"
_UNKNOWN = "the credentials are missing or wrong: set them in the environment"
_NO_BUCKET = "there is no such bucket: create it, or correct the URL"
# What a store says when trying again cannot help: somebody has to change something first.
_REFUSALS = {
    "NoSuchBucket": _NO_BUCKET,
    "ContainerNotFound": "there is no such container: create it, or correct the URL",
    "specified bucket does not exist": _NO_BUCKET,
    "InvalidAccessKeyId": "the store does not know the access key: correct the credentials in the environment",
    "SignatureDoesNotMatch": "the secret key is wrong: correct the credentials in the environment",
    "AccessDenied": _DENIED,
    "AuthenticationFailed": "the credentials are wrong: correct them in the environment",
    "ExpiredToken": "the credentials have expired: renew them in the environment",
    "403 Forbidden": _DENIED,
    "401 Unauthorized": _UNKNOWN,
}
_SAID_CHARACTERS_MAX = 300
DELETED_AT_ONCE = 1000


class Listed(NamedTuple):
    """An object in a listing."""

    name: str
    size_bytes: int


class Store:
    """An object store below a prefix. Names are relative to it."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        self._store = store
        self.url = url

    def create(self, name: str, data: bytes) -> bool:
        """Put an object where there is none, durably; False when there is one.

        False does not say whose it is: an answer that got lost makes the client try again, and
        then it meets its own object.
        """
        with self._reporting("create", name):
            try:
                obstore.put(self._store, name, data, mode="create", use_multipart=False)
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return False
        return True

    def replace(self, name: str, data: bytes) -> None:
        with self._reporting("write", name):
            obstore.put(self._store, name, data, use_multipart=False)

    def copy(self, name: str, to: str) -> None:
        """Copy within the store; `FileNotFoundError` when there is nothing under the name."""
        with self._reporting("copy", name, may_miss=True):
            obstore.copy(self._store, name, to)

    def get(self, name: str) -> memoryview | None:
        """The whole object, or None when there is none."""
        with self._reporting("read", name, may_miss=True):
            try:
                return memoryview(obstore.get(self._store, name).bytes())
            except FileNotFoundError as error:
                self._require_bucket("read", name, error)
                return None

    def get_range(self, name: str, start: int, end: int) -> memoryview | None:
        """Bytes of an object, fewer when it ends before; None when there is no object."""
        assert start < end, (name, start, end)
        with self._reporting("read", name, may_miss=True):
            try:
                return memoryview(obstore.get_range(self._store, name, start=start, end=end))
            except FileNotFoundError as error:
                self._require_bucket("read", name, error)
                return None
            except exceptions.GenericError as error:
                # The object ends before the range begins.
                if "InvalidRange" in str(error) or "416" in str(error):
                    return memoryview(b"")
                raise

    def exists(self, name: str) -> bool:
        with self._reporting("look at", name, may_miss=True):
            try:
                obstore.head(self._store, name)
            except FileNotFoundError as error:
                self._require_bucket("look at", name, error)
                return False
        return True

    def delete(self, names: Sequence[str]) -> None:
        """Delete what of these is there."""
        for start in range(0, len(names), DELETED_AT_ONCE):
            part = list(names[start : start + DELETED_AT_ONCE])
            with self._reporting("delete", part[0], may_miss=True):
                try:
                    obstore.delete(self._store, part)
                except FileNotFoundError:
                    # Some stores stop at the first that somebody else has deleted.
                    for name in part:
                        self._delete_one(name)

    def _delete_one(self, name: str) -> None:
        try:
            obstore.delete(self._store, name)
        except FileNotFoundError as error:
            self._require_bucket("delete", name, error)

    def list(self, folder: str, after: str | None = None) -> list[Listed]:
        """All objects below a folder whose names come after one, in order."""
        with self._reporting("list", folder):
            found = [
                Listed(each["path"], each["size"])
                for chunk in obstore.list(self._store, folder, offset=after, chunk_size=1000)
                for each in chunk
            ]
        return sorted(found)

    def last(self, folder: str) -> Listed | None:
        """The object with the highest name below a folder: one request for each level."""
        return self._extreme(folder, highest=True)

    def first(self, folder: str) -> Listed | None:
        return self._extreme(folder, highest=False)

    def _extreme(self, folder: str, *, highest: bool) -> Listed | None:
        with self._reporting("list", folder):
            found = obstore.list_with_delimiter(self._store, folder)
        objects = sorted(Listed(each["path"], each["size"]) for each in found["objects"])
        if objects:
            return objects[-1 if highest else 0]
        # A folder of a local store stays when it is empty.
        for inner in sorted(found["common_prefixes"], reverse=highest):
            extreme = self._extreme(inner, highest=highest)
            if extreme is not None:
                return extreme
        return None

    @contextmanager
    def _reporting(self, action: str, name: str, *, may_miss: bool = False) -> Iterator[None]:
        """Failures as errors of ours. With `may_miss`, `FileNotFoundError` is for the caller."""
        try:
            yield
        except OutboxError:
            raise
        except FileNotFoundError as error:
            if may_miss and not _refusal(str(error)):
                raise
            raise self._failure(action, name, error, _NO_BUCKET) from None
        except (exceptions.PermissionDeniedError, PermissionError) as error:
            raise self._failure(action, name, error, _refusal(str(error)) or _DENIED) from None
        except exceptions.UnauthenticatedError as error:
            raise self._failure(action, name, error, _refusal(str(error)) or _UNKNOWN) from None
        except (exceptions.BaseError, OSError) as error:
            raise self._failure(action, name, error, _refusal(str(error))) from None

    def _require_bucket(self, action: str, name: str, error: FileNotFoundError) -> None:
        """No object, or no bucket? Some stores answer both by the same error."""
        refusal = _refusal(str(error))
        if refusal:
            raise self._failure(action, name, error, refusal) from None

    def _failure(self, action: str, name: str, error: Exception, refusal: str | None) -> OutboxError:
        said = " ".join(str(error).split())[:_SAID_CHARACTERS_MAX]
        if refusal:
            return StreamRefused(f"cannot {action} {name} of {self.url}: {refusal}. The store said: {said}")
        return StreamUnavailable(
            f"cannot {action} {name} of {self.url} just now; it is tried again. The store said: {said}"
        )


def _refusal(said: str) -> str | None:
    return next((advice for mark, advice in _REFUSALS.items() if mark in said), None)
