"""The table of the clock: what it read last, so that time goes on after a restart."""

from __future__ import annotations

from typing import Final

CLOCK_TABLES: Final = (
    """
    create table clock_reading (
        reading_id bigint not null primary key,
        boot_id text not null,
        machine_us bigint not null,
        steady_us bigint not null,
        wall_us bigint not null,
        pieces text not null
    )
    """,
)
