"""What a route says about itself in the OpenAPI document."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.doors.http.routing.schemas import TEXT, Schema
from penstock.doors.http.wire.messages import JSON


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the query string, or a header."""

    name: str
    says: str
    schema: Schema = field(default_factory=lambda: TEXT)
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """`gives` and `takes` are types of bodies; `query` has the fields with their meaning."""

    summary: str
    gives: Any = None
    gives_as: str = JSON
    takes: Any = None
    needs_body: bool = False  # although each of its fields may be left out
    query: tuple[Field, ...] = ()
    statuses: tuple[int, ...] = (200,)
    errors: tuple[int, ...] = ()  # besides those that every route may return
    also_gives: tuple[str, ...] = ()  # other content types
    also_takes: tuple[str, ...] = ()
    headers: tuple[Field, ...] = ()
    fails_as: Any = None  # the type of its own errors; else all are Problems
