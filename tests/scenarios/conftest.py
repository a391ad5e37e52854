"""One broker for all scenarios of a file; each has names and client ids of its own."""

from __future__ import annotations

from tests.doors.conftest import broker, name

__all__ = ["broker", "name"]
