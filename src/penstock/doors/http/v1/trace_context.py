"""W3C trace context (OpenTelemetry): from the headers of a request into those of its messages.

What is stored as a header reaches every reader: MQTT clients as a user property, HTTP clients and
programs as a header. A `traceparent` that is not valid is ignored, as the standard demands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec import UNSET

from penstock.doors.http.v1.types import Message
from penstock.doors.http.wire.messages import Request

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_VALID: Final = re.compile(r"(?!ff)[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
PARENT_CHARS_MAX: Final = 128  # 55 in the version of today; every message of a request gets it
STATE_CHARS_MAX: Final = 512  # what the standard asks everybody to pass on


def add_trace_context(request: Request, messages: Sequence[Message]) -> None:
    """Give the request's trace context to messages that have none of their own."""
    parent = request.header(TRACEPARENT.encode())
    if len(parent) > PARENT_CHARS_MAX or not _VALID.fullmatch(parent):
        return
    context = [(TRACEPARENT, parent)]
    state = request.header(TRACESTATE.encode())
    if 0 < len(state) <= STATE_CHARS_MAX:
        context.append((TRACESTATE, state))
    for message in messages:
        given = [] if message.headers is UNSET else message.headers
        pairs = list(given.items()) if isinstance(given, dict) else given
        if all(key != TRACEPARENT for key, _ in pairs):
            message.headers = [*pairs, *context]
