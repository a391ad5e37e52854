"""A picture of what went through topics: messages, bytes, pauses, busiest names, readers behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from penstock.pipeline.jobs.stats.minutes import Picture

TOPICS_MAX: Final = 7  # drawn on their own; all others together
READERS_MAX: Final = 10
LABEL_CHARS_MAX: Final = 28
STEPS_MAX: Final = 480  # of time: two pixels each; more minutes than that are put together
FEW: Final = 30  # points that are marked, since a line may not show them
PAUSE_MS_MIN: Final = 1e-3  # the clock's step: zero has no place on a logarithmic scale
REST: Final = "others"
# Colours that stay apart for everybody (Okabe and Ito), and grey for the rest.
_COLOURS: Final = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B8A900", "#999999",
)  # fmt: skip
_MINUTE: Final = timedelta(minutes=1)
_INK: Final = "#333333"
_GRID: Final = "#E3E3E3"


def draw(picture: Picture, lags: Sequence[tuple[Any, ...]], path: Path) -> None:
    """Write the PNG; the file is replaced as a whole."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8.5), dpi=110, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(3, 2, width_ratios=[2.1, 1])
    series = _Series(picture)
    messages = figure.add_subplot(grid[0, 0])
    volume = figure.add_subplot(grid[1, 0], sharex=messages)
    pauses = figure.add_subplot(grid[2, 0], sharex=messages)
    _stack(messages, series, series.messages, "messages per minute")
    unit, size = _unit(max(map(sum, zip(*series.bytes.values(), strict=True)), default=0.0))
    scaled = {topic: [one / size for one in values] for topic, values in series.bytes.items()}
    _stack(volume, series, scaled, f"{unit} per minute")
    _pauses(pauses, picture)
    _mark_time(pauses, messages, volume)
    if series.topics:
        _explain(messages)
    _bars(figure.add_subplot(grid[0:2, 1]), "names with most messages", picture.names, _COLOURS[0])
    behind = sorted(lags, key=lambda row: (-row[5], row[1]))[:READERS_MAX]
    _bars(
        figure.add_subplot(grid[2, 1]),
        "records that readers are behind",
        [(f"{row[1]} · {row[2]}", row[5]) for row in behind],
        _COLOURS[5],
    )
    total = sum(row[2] for row in picture.traffic)
    title = f"{total:,} messages, {series.span()} (UTC)"
    figure.suptitle(title, x=0.01, ha="left", fontsize=14, color=_INK)
    temporary = path.with_suffix(".tmp")
    figure.savefig(temporary, format="png")
    temporary.replace(path)


class _Series:
    """Messages and bytes of each topic, a minute on average, in steps of time without a hole."""

    def __init__(self, picture: Picture) -> None:
        totals: Counter[str] = Counter()
        for topic, _, count, _ in picture.traffic:
            totals[topic] += count
        self.topics = [topic for topic, _ in totals.most_common(TOPICS_MAX)]
        if len(totals) > TOPICS_MAX:
            self.topics.append(REST)
        self.times: list[datetime] = []
        self.messages: dict[str, list[float]] = {}
        self.bytes: dict[str, list[float]] = {}
        if not picture.traffic:
            return
        first = min(row[1] for row in picture.traffic)
        self.last = max(row[1] for row in picture.traffic) + _MINUTE
        minutes = (self.last - first) // _MINUTE
        self.step = -(-minutes // STEPS_MAX)  # minutes
        steps = -(-minutes // self.step)
        self.times = [first + at * self.step * _MINUTE for at in range(steps + 1)]
        self.messages = {topic: [0.0] * steps for topic in self.topics}
        self.bytes = {topic: [0.0] * steps for topic in self.topics}
        for topic, minute, count, size in picture.traffic:
            shown = topic if topic in self.messages else REST
            at = (minute - first) // _MINUTE // self.step
            self.messages[shown][at] += count / self.step
            self.bytes[shown][at] += size / self.step

    def span(self) -> str:
        if not self.times:
            return "nothing in this range"
        is_same_day = self.times[0].date() == self.last.date()
        until = f"{self.last:%H:%M}" if is_same_day else f"{self.last:%Y-%m-%d %H:%M}"
        return f"{self.times[0]:%Y-%m-%d %H:%M} to {until}"


def _mark_time(lowest: Any, *others: Any) -> None:
    """Hours below the lowest only; the date once."""
    from matplotlib import dates

    untyped: Any = dates
    locator = untyped.AutoDateLocator(minticks=4, maxticks=9, tz=UTC)
    lowest.xaxis.set_major_locator(locator)
    lowest.xaxis.set_major_formatter(untyped.ConciseDateFormatter(locator, tz=UTC))
    for axes in others:
        axes.tick_params(labelbottom=False)


def _stack(axes: Any, series: _Series, values: dict[str, list[float]], label: str) -> None:
    """Topics on top of each other, each step as wide as its time."""
    base = [0.0] * max(len(series.times) - 1, 0)
    for topic, colour in zip(series.topics, _colours(series.topics), strict=True):
        top = [low + value for low, value in zip(base, values[topic], strict=True)]
        axes.stairs(
            top, series.times, baseline=base, fill=True, color=colour, label=_short(topic), lw=0
        )
        base = top
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    _dress(axes, label)


def _colours(topics: list[str]) -> list[str]:
    return [_COLOURS[-1] if topic == REST else _COLOURS[at] for at, topic in enumerate(topics)]


def _pauses(axes: Any, picture: Picture) -> None:
    """Percentiles of the time between two messages of one name."""
    times = [row[0] + _MINUTE / 2 for row in picture.pauses]
    marker = "o" if len(times) < FEW else ""
    for at, (label, width) in enumerate([("median", 2.0), ("95 %", 1.4), ("99 %", 1.0)]):
        values = [max(row[at + 1], PAUSE_MS_MIN) for row in picture.pauses]
        axes.plot(times, values, color=_COLOURS[at * 2], lw=width, marker=marker, ms=4, label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: _shown_ms(value))
    if times:
        _explain(axes)
    _dress(axes, "pause between messages of a name")


def _bars(axes: Any, title: str, rows: list[tuple[str, int]], colour: str) -> None:
    """One bar for each, the largest on top, with its number."""
    shown = rows[::-1]
    bars = axes.barh([_short(name) for name, _ in shown], [n for _, n in shown], color=colour)
    axes.bar_label(bars, [f"{n:,}" for _, n in shown], padding=3, fontsize=9, color=_INK)
    axes.margins(x=0.18)
    _dress(axes, title)
    axes.grid(False)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if not rows:
        axes.text(0.0, 0.5, "none", transform=axes.transAxes, color=_INK, fontsize=10)
        axes.yaxis.set_visible(False)
        axes.spines["left"].set_visible(False)


def _explain(axes: Any) -> None:
    """What the colours mean, above the drawing and next to its title."""
    axes.legend(
        loc="lower right", bbox_to_anchor=(1.0, 0.99), ncols=4, frameon=False, fontsize=9,
        borderaxespad=0.2, handlelength=1.2, columnspacing=1.2,
    )  # fmt: skip


def _dress(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10.5, color=_INK)
    axes.grid(True, axis="y", color=_GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9, colors=_INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _short(text: str) -> str:
    """A name as a label; the end tells more than the middle."""
    if len(text) > LABEL_CHARS_MAX:
        half = LABEL_CHARS_MAX // 2
        text = f"{text[: half - 1]}…{text[-half:]}"
    return text.replace("$", r"\$")  # else two of them make a formula


def _unit(bytes_max: float) -> tuple[str, float]:
    """In which unit this much is easy to read, and how many bytes it has."""
    for unit, size in (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if bytes_max >= size:
            return unit, size
    return "bytes", 1.0


def _shown_ms(value: float) -> str:
    for unit, size in (("h", 3_600_000.0), ("min", 60_000.0), ("s", 1_000.0), ("ms", 1.0)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value * 1_000:g} µs"
