"""Random messages: sizes from nothing to several pages, few names, headers, marks, all flags."""

from __future__ import annotations

from random import Random

from penstock.core.delivery.run import Run, run_of
from penstock.log.format.marks import MARK_IDEMPOTENCY_KEY, MARK_QOS2_RELEASED, NO_RECORD, Mark
from penstock.model.record import KIND_BYTES, KIND_JSON, KIND_TEXT
from tests.sim.promises import Stored, stored_by

NAMES = ("a", "a/b", "sensors/42/temperature", "ä/ö", "x" * 300)


def random_append(rng: Random, number: int) -> tuple[Run, list[Mark], list[Stored]]:
    """What to append, and the records it must become; `number` makes payloads its own."""
    count = rng.choice((0, 1, 1, 1, 1, 2, 5, 30))
    payloads = [_payload(rng, number, index) for index in range(count)]
    # A payload too short to be told from others gets a header that tells.
    own = (("number", str(number)),) if any(len(payload) < 12 for payload in payloads) else ()
    draft = run_of(rng.choice(NAMES), payloads, headers=own)
    if rng.random() < 0.3:
        draft = run_of(
            rng.choice(NAMES),
            payloads,
            kind=rng.choice((KIND_BYTES, KIND_TEXT, KIND_JSON)),
            publisher=rng.choice(("", "p", "q")),
            headers=own + rng.choice(((), (("k", "v"), ("k", "")), (("ä", "x" * 100),))),
            qos=rng.randrange(3),
            retain=rng.random() < 0.5,
            expires_at=rng.choice((0, 0, 1_800_000_000_000_000)),
        )
    marks: list[Mark] = []
    if count == 0 or rng.random() < 0.1:
        key = f"mark {number}".encode()
        if count == 0:
            marks.append(Mark(MARK_QOS2_RELEASED, key, NO_RECORD))
        else:
            marks.append(Mark(MARK_IDEMPOTENCY_KEY, key, rng.randrange(count)))
            if rng.random() < 0.3:
                marks.append(Mark(MARK_QOS2_RELEASED, key + b" too", NO_RECORD))
    return draft, marks, stored_by(draft)


def _payload(rng: Random, number: int, index: int) -> bytes:
    size = rng.choice((0, 1, 20, 20, 20, 100, 100, 1_000, rng.randrange(12_000)))
    text = f"{number}.{index};".encode()
    if rng.random() < 0.5:
        return (text * (size // len(text) + 1))[:size]  # compresses well
    return text + rng.randbytes(max(size - len(text), 0)) if size else b""
