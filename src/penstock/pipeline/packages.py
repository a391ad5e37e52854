"""Whether the packages that Spark jobs need are installed; they come with `penstock[spark]`."""

from __future__ import annotations

from importlib import metadata
from typing import Final

from penstock.model.errors import RefusedError

PYSPARK: Final = "4.3"  # the series Penstock is written for and tested with
PACKAGES: Final = ("pyspark", "pandas", "pyarrow", "deltalake", "matplotlib")


def check_spark() -> None:
    """RefusedError says how to install what is missing, or is of another series."""
    found = {name: _version(name) for name in PACKAGES}
    version = found["pyspark"]
    if version and not version.startswith(f"{PYSPARK}."):
        raise RefusedError(
            f"PySpark {version} is installed, but Penstock needs {PYSPARK}: "
            "pip install --upgrade 'penstock[spark]'"
        )
    missing = [name for name in PACKAGES if not found[name]]
    if missing:
        raise RefusedError(
            "jobs and pipelines run on Spark, which needs packages that are not installed "
            f"({', '.join(missing)}): pip install 'penstock[spark]'"
        )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
