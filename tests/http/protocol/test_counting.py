"""Are the values of a JSON body counted as they are, whatever its texts contain?"""

from __future__ import annotations

import json
import time

import pytest

from penstock.doors.http.wire.counting import SLICE_BYTES, VALUES_MAX, check_values
from penstock.doors.http.wire.messages import HttpError

MARKS = ',[{"'


@pytest.mark.parametrize("escapes", ["\\", '"', '\\"', '\\\\"', "\\" * 9, "\\" * 700_000])
@pytest.mark.parametrize("back", range(6))
def test_marks_in_texts_do_not_count_wherever_a_text_is_cut(escapes: str, back: int) -> None:
    first = '{"a":"'
    text = "x" * (SLICE_BYTES - len(first) - back) + escapes + MARKS * 1_000
    values = [text, *range(8)]  # and the object and the list
    body = json.dumps({"a": text, "b": values}, separators=(",", ":")).encode()
    assert body.startswith(b'{"a":"xxx')
    check_values(body, 13)
    with pytest.raises(HttpError, match="more than 8 JSON values"):
        check_values(body, 8)


def test_too_many_values_are_refused_long_before_the_end_of_a_body() -> None:
    def takes_s(body: bytes) -> float:
        begin_s = time.process_time()
        with pytest.raises(HttpError):
            check_values(body, VALUES_MAX)
        return time.process_time() - begin_s

    short = b"[" + b'[],"a,",' * (VALUES_MAX // 2)
    assert min(takes_s(short * 16) for _ in range(5)) < 8 * min(takes_s(short) for _ in range(5))
