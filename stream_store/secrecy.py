"""Which options of a stream URL are secrets, and which may be shown."""

from __future__ import annotations

import re

_SECRET = re.compile(
    r"password|passphrase|secret|token|jaas|credential|signature|access_key|account_key|sas_key|\.pem$|oauthbearer\.config"
)
# Of these the value may be shown. Of others only the name is: a client library may know secrets that we do not.
_HARMLESS = frozenset(
    (
        "account_name",
        "acks",
        "allow_http",
        "compression.type",
        "endpoint",
        "merge_bytes",
        "merge_objects",
        "region",
        "replicas",
        "replication_factor",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "security.protocol",
        "segment_bytes",
        "skip_signature",
        "ssl.ca.location",
        "ssl_ca_certs",
        "ssl_cert_reqs",
        "ssl_check_hostname",
        "timeout_seconds",
        "use_emulator",
    )
)


def is_secret(name: str) -> bool:
    """Whether an option's value must never be printed, wherever it turns up."""
    return name not in _HARMLESS and _SECRET.search(name.lower()) is not None


def shown_option(name: str, value: str) -> str:
    """An option as it may be shown. An endpoint with a user in it is none to show."""
    return f"{name}={value if name in _HARMLESS and '@' not in value else '***'}"
