"""The import rule as an import-linter contract: one table, one row per room.

A *room* is a package or module directly under the root package. A row `log: core model` says
that any module of `log` may import modules of `log`, `core` and `model`, and of no other room;
`*` stands for every room in the rows above, and lets a room import the root package too.
A room without a row breaks the contract; a row without a room does not, so the table can
hold the whole plan from the first day. Dry rooms import none of the *wet* modules.
"""

from __future__ import annotations

from dataclasses import dataclass

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


@dataclass(frozen=True, slots=True)
class Row:
    """What one room may import; `all_above` also opens the root package."""

    allowed: frozenset[str]
    all_above: bool


def read_table(lines: list[str]) -> dict[str, Row]:
    """Rows by room, in order. A name that has no row above is a mistake in the table."""
    rows: dict[str, Row] = {}
    for line in lines:
        room, colon, rest = line.partition(":")
        names = rest.split()
        all_above = names == ["*"]
        unknown = [name for name in names if name not in rows and not all_above]
        if not colon or unknown:
            raise ValueError(f"row {line!r}: write 'room: room room', naming only rooms above it")
        rows[room.strip()] = Row(frozenset(rows if all_above else names), all_above)
    return rows


class RoomsContract(Contract):
    """Checks direct imports: since every room is checked, a detour through another is seen too."""

    # The framework replaces each field by what pyproject.toml says.
    rooms: list[str] = fields.ListField(subfield=fields.StringField())  # type: ignore[assignment]
    dry: set[str] = fields.SetField(subfield=fields.StringField())  # type: ignore[assignment]
    wet: set[str] = fields.SetField(subfield=fields.StringField())  # type: ignore[assignment]

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        root = self.session_options["root_packages"][0]
        table = read_table(self.rooms)
        complaints: list[str] = []
        for importer in sorted(graph.modules):
            room = room_of(importer, root)
            if not room:
                continue
            if room not in table:
                complaints.append(f"{importer}: room '{room}' has no row in the table")
                continue
            for imported in sorted(graph.find_modules_directly_imported_by(importer)):
                reason = self.objection(room, table[room], imported, root)
                if reason:
                    details = graph.get_import_details(importer=importer, imported=imported)
                    line = details[0]["line_number"] if details else "?"
                    complaints.append(f"{importer}:{line} imports {imported}: {reason}")
        return ContractCheck(kept=not complaints, metadata={"complaints": complaints})

    def objection(self, room: str, row: Row, imported: str, root: str) -> str:
        """Why `room` may not import this module; empty if it may."""
        if imported == root:
            return "" if row.all_above else f"import from a room, not from '{root}' itself"
        target = room_of(imported, root)
        if target:
            if target == room or target in row.allowed:
                return ""
            return f"'{room}' may import only: {' '.join(sorted(row.allowed)) or 'nothing'}"
        if room in self.dry and imported.split(".")[0] in self.wet:
            return f"'{room}' is dry: it must not use IO, clocks, threads or randomness"
        return ""

    def render_broken_contract(self, check: ContractCheck) -> None:
        for complaint in check.metadata["complaints"]:
            output.print_error(complaint, bold=False)


def room_of(module: str, root: str) -> str:
    """The room a module lies in; empty for the root package and for what is not ours."""
    parts = module.split(".")
    return parts[1] if parts[0] == root and len(parts) > 1 else ""
