"""From a URL to the store that it means.

Credentials come from the usual places of each cloud (environment variables, instance roles,
files) and never from the URL, which is printed, logged and handed to Spark's workers.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from outbox.errors import StreamMissing, UsageError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from stream_store.objects.store import Store
    from stream_store.url import StreamUrl

INSTALL = "pip install 'outbox-connector[object-store]'"
LOCAL = "object+file"
# Options that are ours, for every store.
OWN = ("merge_objects", "merge_bytes")
_CLIENT = ("allow_http", "timeout_seconds")
_OPTIONS = {
    "s3": ("endpoint", "region", "virtual_hosted_style_request", "skip_signature", "request_payer", "sse_kms_key_id",
           "server_side_encryption", *_CLIENT),
    "gs": ("endpoint", "skip_signature", *_CLIENT),
    "az": ("account_name", "endpoint", "use_emulator", "skip_signature", *_CLIENT),
    LOCAL: (),
}  # fmt: skip
_SECRET = ("key", "secret", "token", "password", "sas", "credential")
TIMEOUT_SECONDS = 30
# The relay tries again by itself, from its start path: the client need not be patient for it.
_RETRIES: Any = {"max_retries": 4, "retry_timeout": timedelta(seconds=20)}


def open_store(url: StreamUrl, *, make: bool) -> Store:
    """The store below the URL's prefix; with `make`, a local one's folder is made."""
    opened = _open(url, make=make)
    from stream_store.objects.store import Store

    return Store(opened, _text(url))


def _text(url: StreamUrl) -> str:
    """The URL, as it can be opened again in another process."""
    place = url.folder.absolute() if url.scheme == LOCAL else url.place
    return f"{url.scheme}://{quote(str(place))}" + (f"?{urlencode(url.options)}" if url.options else "")


def _open(url: StreamUrl, *, make: bool) -> ObjectStore:
    try:
        from obstore.store import AzureStore, GCSStore, LocalStore, S3Store
    except ImportError as error:
        raise UsageError(f"obstore is not installed, and {url.scheme}:// needs it: {INSTALL}") from error
    _require_options(url)
    if url.scheme == LOCAL:
        folder = url.folder.absolute()
        if not folder.is_dir() and not make:
            raise StreamMissing(f"there is no stream in {folder}: a relay makes it when it first starts")
        return LocalStore(folder, automatic_cleanup=True, mkdir=make)
    bucket, _, prefix = url.place.partition("/")
    settings: Any = {name: text for name, text in url.options.items() if name not in (*OWN, *_CLIENT)}
    client: Any = {"timeout": timedelta(seconds=url.number("timeout_seconds", TIMEOUT_SECONDS))}
    if "allow_http" in url.options or settings.get("endpoint", "").startswith("http://"):
        client["allow_http"] = url.options.get("allow_http", "true").lower() == "true"
    where: Any = {"prefix": prefix.strip("/") or None, "client_options": client, "retry_config": _RETRIES}
    if url.scheme == "s3":
        return S3Store(bucket, config=settings, **where)
    if url.scheme == "gs":
        endpoint = settings.pop("endpoint", None)
        return GCSStore(bucket, config={**settings, **({"base_url": endpoint} if endpoint else {})}, **where)
    return AzureStore(bucket, config=settings, **where)


def _require_options(url: StreamUrl) -> None:
    known = (*_OPTIONS[url.scheme], *OWN)
    for name in url.options:
        if name not in known and any(part in name.lower() for part in _SECRET):
            raise UsageError(
                f"a stream URL takes no {name}: it would be printed and logged; put credentials into the environment, as the "
                "cloud's own tools take them (AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_KEY)"
            )
    url.require_options(*known)
