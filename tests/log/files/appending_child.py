"""A process that appends, rolls, seals and trims one log until its standard input closes.

Usage: python -m tests.log.files.appending_child ROOT. Record i of the log has the payload `i` in
nine digits and more bytes; each round appends some, and keeps house now and then.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
from pathlib import Path

from penstock.core.delivery.run import run_of
from penstock.log.files.commit import ThreadWorkers
from penstock.log.files.disk import RealDisk
from penstock.log.files.store import EmbeddedStore
from penstock.log.interface import LogSettings
from penstock.model.clock import SystemClock
from penstock.model.limits import KIB
from tests.appends import append
from tests.log.files.stores import IDENTITY

BATCH = 10
SETTINGS = LogSettings(segment_bytes=64 * KIB)


def payload(offset: int) -> bytes:
    return b"%09d" % offset + bytes(500)


async def main(root: Path) -> None:
    loop = asyncio.get_running_loop()
    workers = ThreadWorkers(loop)
    store = EmbeddedStore(root, RealDisk(), SystemClock(), loop, workers)
    log = await store.create(IDENTITY, "Orders", SETTINGS)
    print("open", flush=True)
    rounds = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        end = log.bounds().end
        names = f"n/{rounds % 3}"
        await append(log, run_of(names, [payload(end + i) for i in range(BATCH)]))
        rounds += 1
        if rounds % 7 == 0:
            await log.seal_closed()
        if rounds % 11 == 0:
            await log.trim(None, 400 * KIB)
    await log.close()
    workers.close()
    print(*log.bounds(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
    os._exit(0)
