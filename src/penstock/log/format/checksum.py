"""CRC-32C, the checksum of everything in a log: the C function of the package `crc32c`.

Only that function is loaded. The package itself looks up its own version among all that is
installed, which takes longer than a small command has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crc32c import crc32c as crc32c
else:
    from importlib.machinery import PathFinder
    from importlib.util import find_spec, module_from_spec

    _package = find_spec("crc32c")
    _places = None if _package is None else _package.submodule_search_locations
    _found = None if _places is None else PathFinder.find_spec("crc32c._crc32c", _places)
    if _found is None:  # another version of the package: it has the function itself
        from crc32c import crc32c
    else:
        _module = module_from_spec(_found)
        _found.loader.exec_module(_module)
        crc32c = _module.crc32c
