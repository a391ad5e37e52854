"""`python -m tests.longrun MINUTES [SEED]`: random traffic and kills for as long as you like."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from tests.longrun.run import Failure, Run

STEPS = 400  # of a round


def main(minutes: float, seed: int) -> int:
    print(f"{minutes:g} minutes, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        run = Run(Path(directory) / "data", seed)
        until_s = time.monotonic() + 60 * minutes
        try:
            run.begin()
            while time.monotonic() < until_s:
                run.round(STEPS)
                print(progress(run), flush=True)
            run.end()
        except Failure as failure:
            print(f"{failure}\n\n{progress(run)}, seed {seed}", file=sys.stderr)
            return 1
    print(f"{progress(run)}: all as it must be, and the log is sound")
    return 0


def progress(run: Run) -> str:
    return (
        f"round {run.rounds}: {run.ledger.total:,} messages sent, {run.received:,} received,"
        f" {len(run.wills.rows):,} wills, {run.kills} kills"
    )


if __name__ == "__main__":
    chosen = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32)
    sys.exit(main(float(sys.argv[1]), chosen))
