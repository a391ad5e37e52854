"""Values that programs get wrong: digits that are none, numbers beyond bounds, texts that nest."""

from __future__ import annotations

# Of a query field or a path parameter: as it is sent, percent signs and all.
RAW_TEXTS = [
    "%", "%ZZ", "%ff", "%C0%80", "%ED%A0%80", "%00", "%0d%0a", "%u0031", "&", ";", "=", "[]",
]  # fmt: skip

# Of any field.
TEXTS = [
    "", " ", "²", "٣", "１２", "½", "Ⅷ", "1_000", "0x10", "0b1", "+5", "-0", "-1", "1.5", ".5",
    "5.", "1.²", "1e5", "1e400", "nan", "NaN", "inf", "Infinity", "-Infinity", "true", "null", "\0",
    "\n", "\u202e", "\ufeff", "\U0001f600", "..", ".", "/", "//", "+", "#", "a/#/b", "$SYS",
    "$share/a/b",
    "*", "[", "]", "[::", "{", "}", '"', "'", "\\", "1" * 5_000, "0" * 5_000 + "1",
    "-" + "1" * 5_000, "1" * 400 + "s", "0." + "1" * 5_000, "1" * 5_000 + "d", "٣d", "²s",
    "1" * 300 + ".5s", "-" + "9" * 18 + "d", "-" + "9" * 30 + "d", "-1d1h1m1s1ms",
    "000000001999999", "9" * 19, str((1 << 63) - 1), str(1 << 63), str(1 << 64),
    "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "9999-99-99T99:99:99Z",
    "2026-01-01T00:00:60Z", "0000-01-01T00:00:00Z", "2026-01-01T00:00:00." + "9" * 5_000 + "Z",
    "(" * 3_000, "NOT " * 1_000 + "TRUE", "payload" + ".a" * 1_500, "payload." + "[0]" * 900,
    "offset = " + "9" * 4_000, "offset = 1e400", "payload.a[" + "9" * 4_000 + "] = 1",
    "timestamp > '9999-12-31T23:59:59-23:59'", "offset = ²", "payload.² = 1",
    "payload LIKE '" + "%" * 3_000 + "'", "name IN (" + "'a'," * 900 + "'a')", "x" * 7_000,
    "ß" * 400, "a,b,,c", "offset,offset", "-1h" * 500,
]  # fmt: skip

# Of a JSON field: as it stands in the body.
JSONS = [
    "null", "true", "false", "[]", "{}", "0", "-0", "-1", "1.5", "-0.0", "1e400", "-1e400",
    "1e-400", "NaN", "Infinity", "-Infinity", "1" * 5_000, "-" + "1" * 5_000, "1." + "1" * 5_000,
    "1e" + "9" * 5_000, str((1 << 63) - 1), str(1 << 63), str(-(1 << 63) - 1), str(1 << 64), "01",
    "+1", ".5", "1.", "0x10", '"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"\x01"', '"\\x"', '"',
    "'a'", "undefined", "[" * 5_000, "[" * 900 + "]" * 900, "[" * 100_000 + "]" * 100_000,
    '{"a":' * 900 + "1" + "}" * 900, '{"a":' * 100_000, "[1,]", '{"a":1,"a":2}', "[[]]", '[["a"]]',
    '[["a","b","c"]]', '{"a":null}', "[null]", "[-1]", "[1.5]", "[9223372036854775808]",
    '["\\ud800"]', "[" + "0," * 9_999 + "0]", '"' + "x" * 100_000 + '"',
]  # fmt: skip

HEADERS = [
    "Accept", "Access-Control-Request-Headers", "Access-Control-Request-Method", "Authorization",
    "Connection", "Content-Length", "Content-Type", "Expect", "Host", "Idempotency-Key",
    "Idempotency-Part", "If-None-Match", "Last-Event-ID", "Origin", "Sec-Fetch-Site",
    "Sec-WebSocket-Key", "Sec-WebSocket-Protocol", "Sec-WebSocket-Version", "Transfer-Encoding",
    "Upgrade",
]  # fmt: skip

# Of headers, beside the texts.
HEADER_TEXTS = [
    "Basic", "Basic ²", "Basic /////w==", "Basic Og==", "Basic OnA=", "Bearer", "Bearer \xb2",
    "Bearer psk_\xff", "chunked", "gzip, chunked", "100-continue", "websocket", "upgrade",
    "close, upgrade", "text/plain; charset=\xb2", "application/x-ndjson",
    "application/octet-stream", "application/vnd.apache.arrow.stream;q=²",
    "application/vnd.penstock.batches", "text/event-stream", "http://[", "http://localhost:²",
    "null",
]  # fmt: skip
