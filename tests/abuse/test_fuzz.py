"""Does any input get more out of the decoder than a refusal? `make nightly` asks much longer."""

from __future__ import annotations

import random

import pytest

from tests.abuse import fuzz
from tests.abuse.fuzz import check_packets


def test_ten_thousand_broken_packets_do_no_harm() -> None:
    check_packets(10_000, random.SystemRandom().randrange(1 << 32), is_loud=False)


def test_the_fuzzer_notices_what_it_looks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(data: bytes, version: int, cut: int) -> None:
        raise IndexError("a decoder that reads past its end")

    monkeypatch.setattr(fuzz, "feed", wrong)
    with pytest.raises(IndexError):
        check_packets(10, 1, is_loud=False)
