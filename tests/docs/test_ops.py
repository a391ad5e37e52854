"""ops/: do the dashboard and the alerts ask for metrics that a broker has?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from penstock.broker.figures.metrics import DROPS, FAMILIES, REFUSALS
from penstock.doors.http.status import family_of

OPS = Path(__file__).parents[2] / "ops"


def panels() -> list[dict[str, str]]:
    dashboard = json.loads((OPS / "grafana-dashboard.json").read_text())
    return [target for panel in dashboard["panels"] for target in panel["targets"]]


def alerts() -> list[dict[str, str]]:
    groups = yaml.safe_load((OPS / "prometheus-alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[str]:
    yield from (one["expr"] for one in [*panels(), *alerts()])


def test_every_expression_asks_for_metrics_that_are_exposed() -> None:
    names = {
        name for text in expressions() for name in re.findall(r"\b(?:penstock|process)_\w+", text)
    }
    assert len(names) > 20
    assert {name for name in names if family_of(name) not in FAMILIES} == set()


def test_every_reason_in_an_expression_exists() -> None:
    reasons = {
        reason
        for text in expressions()
        for found in re.findall(r'reason(?:=~|!~|=|!=)"([^"]*)"', text)
        for reason in found.split("|")
    }
    assert reasons and reasons <= {*DROPS, *REFUSALS}


def test_no_panel_of_the_dashboard_covers_another() -> None:
    dashboard = json.loads((OPS / "grafana-dashboard.json").read_text())
    cells = [
        (x, y)
        for place in [panel["gridPos"] for panel in dashboard["panels"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_every_alert_says_what_happened_and_how_bad_it_is() -> None:
    for rule in alerts():
        assert rule["alert"].startswith("Penstock")
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert "$labels.instance" in rule["annotations"]["summary"]


def test_the_container_runs_as_another_user_than_root_and_says_whether_it_is_healthy() -> None:
    lines = (OPS / "Containerfile").read_text().partition("\nFROM ")[2].splitlines()
    assert "USER 10001" in lines and "VOLUME /data" in lines
    assert any(line.startswith("HEALTHCHECK ") for line in lines)
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (OPS / "Containerfile").read_text(), re.M)
    allowed = (OPS.parent / ".dockerignore").read_text().splitlines()
    for name in " ".join(copied).split():
        assert (OPS.parent / name).exists() and f"!{name}" in allowed


def test_the_unit_runs_the_command_without_privileges() -> None:
    unit = (OPS / "penstock.service").read_text()
    assert re.search(r"^ExecStart=\S+/penstock serve ", unit, re.MULTILINE)
    for line in (
        "Type=notify",
        "WatchdogSec=60",
        "KillMode=mixed",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "DynamicUser=yes",
    ):
        assert line in unit
