"""The clocks of the last broker as they were, for the next start: one row, replaced as a whole."""

from __future__ import annotations

import msgspec

from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import Runner
from penstock.model.timeline import ClockReading, Piece

_PIECES = msgspec.json.Decoder(list[tuple[int, int, int]])


class ClockCatalog:
    """Every method is one durable unit of work."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def load(self) -> ClockReading | None:
        """What was saved last; None in a catalog that no broker has used yet."""

        def work(database: Database) -> ClockReading | None:
            rows = database.fetch(
                "select boot_id, machine_us, steady_us, wall_us, pieces from clock_reading"
            )
            if not rows:
                return None
            boot_id, machine_us, steady_us, wall_us, text = rows[0]
            pieces = tuple(Piece(*piece) for piece in _PIECES.decode(text))
            return ClockReading(boot_id, machine_us, steady_us, wall_us, pieces)

        return await self._runner.run(work)

    async def save(self, reading: ClockReading) -> None:
        await self._runner.run(lambda database: save_reading(database, reading))


def save_reading(database: Database, reading: ClockReading) -> None:
    """Also part of a checkpoint."""
    pieces = [(one.stamp_us, one.steady_us, one.slowness) for one in reading.pieces]
    database.execute(
        "insert into clock_reading (reading_id, boot_id, machine_us, steady_us, wall_us, pieces)"
        " values (1, $1, $2, $3, $4, $5)"
        " on conflict (reading_id) do update set boot_id = excluded.boot_id,"
        " machine_us = excluded.machine_us, steady_us = excluded.steady_us,"
        " wall_us = excluded.wall_us, pieces = excluded.pieces",
        reading.boot_id,
        reading.machine_us,
        reading.steady_us,
        reading.wall_us,
        msgspec.json.encode(pieces).decode(),
    )
