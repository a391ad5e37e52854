"""Tools of the checkout: environment, engine, import rules. Not part of the installed package."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - said before an import fails in a less helpful way
    sys.exit(
        f"error: Python {sys.version.split()[0]} is too old: Penstock needs 3.11 or newer;"
        " name one with `make PYTHON=python3.12 setup`"
    )
