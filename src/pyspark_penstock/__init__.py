"""Found by Spark through its name: makes `format("penstock")` known without registration."""

from penstock.pipeline.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
