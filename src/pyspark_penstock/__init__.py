"""Found by Spark through its name: makes `format("penstock")` known without registration."""

try:
    from penstock.pipeline.source.source import PenstockSource as DefaultSource
except ModuleNotFoundError as missing:
    raise ImportError(
        f'format("penstock") needs the package {missing.name}, which is not installed: '
        "pip install 'penstock[spark]'"
    ) from missing

__all__ = ["DefaultSource"]
