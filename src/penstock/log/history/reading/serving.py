"""The process that reads history: pyarrow and stores that hang stay out of the broker.

It ends when the broker does, however that ends.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Final

import msgspec

from penstock.log.history.place import HistoryRoot
from penstock.log.history.reading.orders import FRAME, INDEX, LIST, Answer, Order
from penstock.log.history.reading.tables import Tables
from penstock.log.history.storage import said
from penstock.model.errors import CorruptError

THREADS: Final = 4  # of which some may wait for the store
Parts = list[bytes | memoryview]


def carry_out(tables: Tables, order: Order) -> tuple[Answer, Parts]:
    """The answer, and the bytes of the batches it brings; errors become answers."""
    answer = Answer(order.number, order.file)
    try:
        if order.what == LIST:
            answer.files = tables.list_files(order.log, order.life)
            return answer, []
        file = tables.open(order.log, order.file)
        if order.what == INDEX:
            answer.offsets, answer.times = file.index()
            return answer, []
        batches = file.read(order.group, order.first, order.count)
        return answer, [part for batch in batches for part in batch.to_bytes()]
    except FileNotFoundError as missing:
        answer.error, answer.is_missing = str(missing), True
    except CorruptError as broken:
        answer.error, answer.is_corrupt = f"{answer.file}: {broken}", True
    except Exception as failed:  # whatever pyarrow, delta-rs or the store have to say
        answer.error = f"{answer.file}: {said(failed)}" if answer.file else said(failed)
    return answer, []


def main() -> None:
    """Carry out the orders of standard input, until it ends."""
    orders = sys.stdin.buffer
    tables = Tables(msgspec.json.decode(orders.readline(), type=HistoryRoot))
    next_order, next_answer = threading.Lock(), threading.Lock()

    def work() -> None:
        """Whoever is free waits for the next order: handing it to a thread would take longer."""
        while True:
            with next_order:
                line = orders.readline()
            if not line:
                os._exit(0)  # nobody waits for what the others are doing
            answer, parts = carry_out(tables, msgspec.json.decode(line, type=Order))
            encoded = msgspec.json.encode(answer)
            head = FRAME.pack(len(encoded), sum(map(len, parts))) + encoded
            with next_answer:
                sys.stdout.buffer.write(b"".join([head, *parts]))
                sys.stdout.buffer.flush()

    for _ in range(THREADS - 1):
        threading.Thread(target=work, name="penstock-history", daemon=True).start()
    work()
