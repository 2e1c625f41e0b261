"""Kafka's errors as ours: what passes, what a person must change, and what that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from outbox.errors import OutboxError, StaleTail, StreamUnavailable, UsageError

if TYPE_CHECKING:
    from stream_store.kafka.address import Address

FENCED = frozenset(
    (
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.TRANSACTION_COORDINATOR_FENCED,
    )
)
MISSING = frozenset((KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION))
DENIED = frozenset(
    (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    )
)
UNKNOWN_USER = frozenset(
    (
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
        KafkaError._SSL,
    )
)
TOO_FEW = frozenset((KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
TOO_LARGE = frozenset((KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE))
QUOTA = frozenset((KafkaError.THROTTLING_QUOTA_EXCEEDED, KafkaError.POLICY_VIOLATION))
STORAGE = frozenset((KafkaError.KAFKA_STORAGE_ERROR,))
NO_HOST = frozenset((KafkaError._RESOLVE,))
# Said when an operation has run out of time; why it has, the client tells beside it.
VAGUE = frozenset(
    (
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError.REQUEST_TIMED_OUT,
    )
)


def error_of(failure: KafkaException) -> KafkaError:
    found: KafkaError = failure.args[0]
    return found


def translate(error: KafkaError, doing: str, address: Address, beside: KafkaError | None = None) -> OutboxError:
    """The error of ours for one of Kafka's. `beside` is what the client last complained of by itself.

    Wrong credentials and missing privileges are errors of usage when a relay starts. Under one that has led
    the supervisor takes them for something that passes: somebody is changing them.
    """
    if error.code() in VAGUE and beside is not None:
        error = beside
    code, said = error.code(), address.without_secrets(error.str())
    where = f"{address.url} ({doing})"
    if code in FENCED:
        return StaleTail(f"another writer has opened {address.url} since, and this one is fenced out: {said}")
    if code in UNKNOWN_USER:
        return UsageError(
            f"{where}: the broker does not let us in: {said}. Correct sasl.username, sasl.password (or {_PASSWORD}), "
            "sasl.mechanism, security.protocol, ssl.ca.location"
        )
    if code in DENIED:
        return UsageError(
            f"{where}: an ACL is missing: {said}. A relay needs ALL on the topics {address.topic} and {address.companion} and on "
            f"the transactional ID {address.transactional_id}; a reader READ and DESCRIBE on both topics, and WRITE on "
            f"{address.companion} to report how far it is"
        )
    return StreamUnavailable(f"{where}: {said}{_advice(code, address)}")


def _advice(code: int, address: Address) -> str:
    known = {
        TOO_LARGE: f"An event is larger than the topic takes: raise max.message.bytes of {address.topic}; the relay goes on by itself then",
        # A client that has lost its brokers says the same. Whoever opens the stream anew looks whether it is there.
        MISSING: f"Topic {address.topic} or its companion was deleted, or no broker leads it just now",
        TOO_FEW: f"Fewer replicas are in sync than min.insync.replicas of {address.topic} asks for: bring the brokers back",
        QUOTA: "A quota or a policy of the cluster refuses it",
        STORAGE: "A broker's disk is full or failing: its log names the folder",
        NO_HOST: "Correct the host in the stream's URL",
    }
    return next((f". {advice}" for codes, advice in known.items() if code in codes), "")


_PASSWORD = "OUTBOX_KAFKA_SASL_PASSWORD"  # noqa: S105 - the variable's name
