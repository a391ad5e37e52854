"""The path of a stranger: start a broker, open the page, publish, start a job, see all of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.docs.test_demo import start
from tests.doors.served import Served
from tests.http.asking import Asking

JOB_S_MAX = 240  # Spark starts, and is on its own machine with others


@pytest.mark.java
@pytest.mark.slow
def test_a_stranger_publishes_in_the_page_sees_it_in_mosquitto_and_watches_a_job(
    page: Page, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with Served(data) as broker:
        page.goto(f"http://127.0.0.1:{broker.http_port}/")
        expect(page.locator("h1")).to_have_text("Overview")
        page.get_by_role("link", name="Messages").click()
        expect(page.get_by_text("There is no topic yet.")).to_be_visible()
        subject = ["mosquitto_sub", "-p", str(broker.port), "-t", "hello/#", "-C", "1", "-W", "60"]
        with subprocess.Popen(subject, stdout=subprocess.PIPE, text=True) as listening:
            with Asking(broker.http_port) as asking:
                while not asking.ask("GET", "/v1/overview").json["subscriptions"]:
                    pass  # each question takes the broker a moment
            page.get_by_label("Topic").fill("hello")
            page.get_by_label("Name", exact=True).fill("hello/world")
            page.get_by_label("Payload", exact=True).fill("good morning")
            page.get_by_role("button", name="Publish", exact=True).click()
            assert listening.stdout is not None
            assert listening.stdout.read() == "good morning\n"
        expect(page.get_by_role("row").filter(has_text="good morning")).to_be_visible()
        job = ["pipeline", "run", "archive", "hello", "--to", str(tmp_path / "archive")]
        command = [sys.executable, "-m", "penstock", *job, "--at", str(data)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
            page.get_by_role("link", name="Pipelines").click()
            row = page.get_by_role("row").filter(has_text="archive hello")
            expect(row).to_contain_text("done", timeout=JOB_S_MAX * 1000)
            assert running.wait(JOB_S_MAX) == 0
        expect(row.get_by_role("cell", name="1", exact=True)).to_be_visible()


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_the_pipeline_of_the_demo_is_watched_in_the_page(page: Page, tmp_path: Path) -> None:
    place = ("--to", str(tmp_path / "output"))
    with start("--seconds", "12", "--limit", "380", *place, scratch=tmp_path) as demo:
        assert demo.stdout is not None
        shown = (re.search(r"in a browser: (http://\S+)", line) for line in demo.stdout)
        page.goto(next(found[1] for found in shown if found))
        page.get_by_role("link", name="Pipelines").click()
        row = page.get_by_role("row").filter(has_text="sql ")
        expect(row).to_contain_text("running", timeout=JOB_S_MAX * 1000)
        rows = row.locator("td[data-title=Rows]")
        expect(rows).not_to_have_text("0", timeout=JOB_S_MAX * 1000)
        page.get_by_role("link", name="Topics").click()
        expect(page.get_by_role("row").filter(has_text="averages")).to_be_visible()
        told, errors = demo.communicate(timeout=390)
        assert demo.returncode == 0, told + errors
