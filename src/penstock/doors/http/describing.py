"""What a route says about itself in the OpenAPI document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.doors.http.messages import JSON


@dataclass(frozen=True, slots=True)
class Facts:
    """`gives` and `takes` are types of bodies; `query` has the fields with their meaning."""

    summary: str
    gives: Any = None
    gives_as: str = JSON
    takes: Any = None
    query: tuple[tuple[str, str], ...] = ()
    statuses: tuple[int, ...] = (200,)
    errors: tuple[int, ...] = ()  # beside those that every route may give
    also_gives: tuple[str, ...] = ()  # other content types
    also_takes: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
