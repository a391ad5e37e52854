"""A real process that consumes and says on stdout what it handles, until it is killed.

Usage: consuming_child.py DIRECTORY BATCH
Each line is the offset of a record it handled, written after the record was handed out.
"""

from __future__ import annotations

import os
import sys

from penstock import Broker


def main() -> None:
    directory, batch = sys.argv[1], int(sys.argv[2])
    with Broker(directory, position_saves_max=1) as broker:
        while records := broker.consume("worker", "orders", limit=batch):
            for record in records:
                os.write(1, b"%d\n" % record.offset)
        os.write(1, b"done\n")


if __name__ == "__main__":
    main()
