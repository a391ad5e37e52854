"""Are parts of a run the messages they should be, and their bytes still packets?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.delivery.run import Run
from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Publish
from penstock.mqtt.scanner import scan


def payloads(run: Run) -> list[bytes]:
    return [run.data[at : at + n] for at, n in zip(run.starts, run.lengths, strict=True)]


@given(
    sizes=st.lists(st.sampled_from([0, 1, 5, 200]), min_size=1, max_size=9),
    ends=st.tuples(st.integers(0, 8), st.integers(1, 9)),
    is_wire=st.booleans(),
)
def test_a_run_is_cut_into_parts_that_can_be_forwarded_as_they_are(
    sizes: list[int], ends: tuple[int, int], is_wire: bool
) -> None:
    packets = [encode(Publish("a/b", bytes((at,)) * n), MQTT_5) for at, n in enumerate(sizes)]
    chunk = scan(b"".join(packets), 0, MQTT_5, 1 << 20)
    run = Run("a/b", chunk.data, chunk.payload_starts, chunk.payload_lengths, 0)
    run.publisher, run.until_us, run.headers = "who", 77, (("k", "v"),)
    run.wire = object() if is_wire else None
    first = min(ends[0], len(sizes) - 1)
    end = max(min(ends[1], len(sizes)), first + 1)
    part = run.cut(first, end)
    assert payloads(part) == payloads(run)[first:end]
    assert (part.count, part.wire) == (end - first, run.wire)
    assert (part.name, part.publisher, part.until_us, part.headers) == (
        "a/b",
        "who",
        77,
        (("k", "v"),),
    )
    if is_wire:
        assert part.data == b"".join(packets[first:end])
