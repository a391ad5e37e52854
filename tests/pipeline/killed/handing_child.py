"""What tasks and driver of a streaming query do, without Spark: stage, hand over, note, go on.

The note is Spark's commit log: it is written after the hand-over, so a process that dies in between
does the same number again, with files of its own. Begins where the note says; ends at TOTAL.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pyarrow as pa

from penstock.pipeline.sink.intake import DirectoryIntake
from penstock.pipeline.sink.writing import TaskWrite

SOURCE = "query x"
TOTAL = 60
ROWS = 400


def main() -> None:
    data, note = Path(sys.argv[1]), Path(sys.argv[2])
    chance = random.Random()
    print("started", flush=True)
    number = int(note.read_text()) + 1 if note.exists() else 0
    while number < TOTAL:
        intake = DirectoryIntake(data)
        edge = chance.randrange(ROWS)  # tasks may divide the rows otherwise the next time
        files = []
        for partition, rows in enumerate([range(edge), range(edge, ROWS)]):
            task = TaskWrite(intake, None, SOURCE, number, partition)
            payloads = pa.array([f"{number}/{row}" for row in rows], pa.string())
            topics = pa.array([("out", "other")[row % 2] for row in rows], pa.string())
            files += task.write([pa.record_batch([payloads, topics], names=["payload", "topic"])])
        intake.hand_over(SOURCE, number, files, is_only=False)
        time.sleep(chance.random() / 50)  # Spark takes its time here too
        with note.with_suffix(".tmp").open("w") as file:
            file.write(str(number))
        os.replace(note.with_suffix(".tmp"), note)
        number += 1
    print("done", flush=True)


if __name__ == "__main__":
    main()
