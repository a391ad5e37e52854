"""The picture at the end: every reading of the archive, and the averages that came back."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd

matplotlib.use("Agg")
from matplotlib import dates
from matplotlib import pyplot as plt

WINDOW_S = 5


def draw(readings: pd.DataFrame, averages: list[dict[str, Any]], file: Path) -> None:
    """Readings as dots, averages as lines over their windows."""
    figure, axes = plt.subplots(figsize=(10, 5.5), layout="constrained")
    for number, (device, own) in enumerate(readings.groupby("device")):
        color = f"C{number}"
        axes.plot(own["timestamp"], own["celsius"], ".", color=color, alpha=0.3, markersize=4)
        known = sorted((one for one in averages if one["device"] == device), key=_since)
        times = [_since(one) + pd.Timedelta(seconds=WINDOW_S / 2) for one in known]
        values = [one["celsius"] for one in known]
        axes.plot(times, values, "o-", color=color, linewidth=2, markersize=5, label=device)
    axes.set_title("Boilers: readings over MQTT (dots), 5 s averages by Spark (lines)", loc="left")
    axes.set_ylabel("°C")
    axes.set_xlabel("time of receipt, UTC")
    clock = dates.DateFormatter("%H:%M:%S")  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(clock)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(file, dpi=120)
    plt.close(figure)


def _since(average: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(average["since"])
