"""Does the import rule hold, and would it notice a violation?"""

from __future__ import annotations

import pytest
from grimp import ImportGraph
from importlinter import ContractCheck

from tools.rooms import RoomsContract, read_table

TABLE = ["model:", "core: model", "log: core model", "app: *"]


def check(*imports: tuple[str, str], modules: tuple[str, ...] = ()) -> ContractCheck:
    graph = ImportGraph()
    for module in {*modules, *(name for pair in imports for name in pair)}:
        graph.add_module(module, is_squashed=not module.startswith("penstock"))
    for importer, imported in imports:
        graph.add_import(
            importer=importer, imported=imported, line_number=7, line_contents="import"
        )
    contract = RoomsContract(
        name="rooms",
        session_options={"root_packages": ["penstock"]},
        contract_options={"rooms": TABLE, "dry": ["core"], "wet": ["time"]},
    )
    return contract.check(graph, verbose=False)


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("penstock.core.naming.trie", "penstock.model.errors"),
        ("penstock.log.file", "penstock.log.format.batch_bytes"),
        ("penstock.log.file", "time"),
        ("penstock.app", "penstock.log.file"),
        ("penstock.app", "penstock"),
        ("penstock", "penstock.app"),
    ],
)
def test_allowed_import_passes(importer: str, imported: str) -> None:
    assert check((importer, imported)).kept


@pytest.mark.parametrize(
    ("importer", "imported", "reason"),
    [
        ("penstock.model.errors", "penstock.core.naming.trie", "'model' may import only: nothing"),
        ("penstock.core.naming.trie", "penstock.log.file", "'core' may import only: model"),
        ("penstock.log.file", "penstock.app", "'log' may import only: core model"),
        ("penstock.log.file", "penstock", "import from a room, not from 'penstock' itself"),
        ("penstock.core.naming.trie", "time", "'core' is dry"),
    ],
)
def test_forbidden_import_is_named_with_its_line_and_reason(
    importer: str, imported: str, reason: str
) -> None:
    result = check((importer, imported))
    (complaint,) = result.metadata["complaints"]
    assert not result.kept
    assert complaint.startswith(f"{importer}:7 imports {imported}: ")
    assert reason in complaint


def test_room_without_a_row_breaks_the_contract() -> None:
    assert not check(modules=("penstock.attic.box",)).kept


@pytest.mark.parametrize("row", ["core", "core: modle", "core: core"])
def test_table_that_names_an_unknown_room_is_refused(row: str) -> None:
    with pytest.raises(ValueError, match="naming only rooms above it"):
        read_table(["model:", row])
