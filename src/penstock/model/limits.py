"""Named bounds that hold everywhere, each with its reason."""

from __future__ import annotations

from typing import Final

FILE_MODE: Final = 0o600  # what is stored is for the broker's user alone
DIRECTORY_MODE: Final = 0o700

KIB: Final = 1024
MIB: Final = 1024 * 1024
GIB: Final = 1024 * MIB

PAYLOAD_BYTES_MAX: Final = 16 * MIB  # one message; larger things belong in an object store
NAME_BYTES_MAX: Final = 65_535  # MQTT's own bound for a name or a filter (UTF-8 bytes)
NAME_LEVELS_MAX: Final = 128  # deeper names are attacks or mistakes, and cost trie nodes
TOPIC_CHARS_MAX: Final = 255  # seed 001
CONSUMER_CHARS_MAX: Final = 255
USER_CHARS_MAX: Final = 255
TENANT_CHARS_MAX: Final = 63  # a label of DNS, a bucket or a Kafka topic takes as many
KEY_CHARS_MAX: Final = 255  # of an idempotency key; a UUID has 36
PASSWORD_BYTES_MAX: Final = 1_024  # nobody types more, and hashing more is work for nothing
EXPRESSION_CHARS_MAX: Final = 4_096
EXPRESSION_DEPTH_MAX: Final = 64
HEARTBEAT_S: Final = 15.0  # the longest silence of a broker towards a reader of a stream
SILENCE_HEARTBEATS_MAX: Final = 2  # then a reader takes the connection for dead
HEADERS_BYTES_MAX: Final = 65_535  # of one record, all keys and values; a key's length has 16 bits
WILL_GRACE_S: Final = 30  # after a start; most clients come back within seconds
