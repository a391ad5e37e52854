"""What every test run shares: hypothesis profiles, and the promise that nothing was skipped."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

from tests import on_kafka, scratch
from tests.coroutines import pytest_fixture_setup, pytest_pyfunc_call, runner
from tests.examples import QUICK
from tests.postgres_server import PostgresServer
from tests.scheduling import pytest_xdist_make_scheduler
from tests.scratch import tmp_path
from tools.spark_classes import java_options

__all__ = [
    "pytest_fixture_setup",
    "pytest_pyfunc_call",
    "pytest_xdist_make_scheduler",
    "runner",
    "tmp_path",
]

# Deadlines are off: a noisy machine is not a bug. A failure prints the blob that replays it.
settings.register_profile(QUICK, max_examples=20, deadline=None, print_blob=True)
settings.register_profile("dev", max_examples=100, deadline=None, print_blob=True)
settings.register_profile("long", max_examples=300, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


# A shell that runs the tests in the background lets SIGINT be ignored, and so would every program
# that a test starts and interrupts. Programs do not inherit a handler.
signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("SPARK_SUBMIT_OPTS", java_options())  # read by whatever starts a driver

# Tests here start real brokers and databases: `make test` runs them, `make check` does not.
PROCESS_TESTS = {
    *("abuse", "access", "app", "bus", "cli", "client", "conformance", "crash", "doors", "http"),
    *("backup", "history", "longrun", "quotas", "scenarios", "tenants"),
}
STARTS_JAVA = re.compile(rb"\bspark\b|mark\.java\b")  # the fixture, or the mark
ALL_SLOW = re.compile(rb"^pytestmark = .*mark\.(slow|java)\b", re.MULTILINE)


def starts_brokers(path: Path) -> bool:
    here = Path(__file__).parent
    parts = path.relative_to(here).parts if path.is_relative_to(here) else ()
    return not PROCESS_TESTS.isdisjoint(parts[:1])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Importing what a target leaves out anyway would take seconds in each worker."""
    if config.getoption("markexpr") == "java":
        named = collection_path.match("test_*.py")
        return (named and not STARTS_JAVA.search(collection_path.read_bytes())) or None
    if config.getoption("markexpr").startswith("not slow"):
        return starts_brokers(collection_path) or is_all_slow(collection_path) or None
    return None


def is_all_slow(path: Path) -> bool:
    return path.match("test_*.py") and ALL_SLOW.search(path.read_bytes()) is not None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--on-kafka"):
        left_out = [item for item in items if on_kafka.why_left_out(item.nodeid)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    for item in items:
        if starts_brokers(item.path):
            item.add_marker(pytest.mark.slow)
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.java)
        if uses_postgres(item):
            item.add_marker(pytest.mark.over_a_second)
        if shares_in_its_file(item) and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def uses_postgres(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    backends = [] if call is None else [one for one in call.params.values() if isinstance(one, str)]
    return "postgres" in (*backends, *getattr(item, "fixturenames", ()))


def shares_in_its_file(item: pytest.Item) -> bool:
    """Whether it uses a fixture of its file, such as a broker: one worker starts that, not five."""
    found: dict[str, Sequence[pytest.FixtureDef[object]]] = {}
    if isinstance(item, pytest.Function):
        found = item._fixtureinfo.name2fixturedefs
    return any(one.scope == "module" for chain in found.values() for one in chain)


def its_turn(item: pytest.Item) -> int:
    """Groups with a name of their own take longest and come first, then files that share a broker.

    Then single tests that are slow; the short ones fill the last seconds of each worker.
    """
    mark = item.get_closest_marker("xdist_group")
    if mark is not None:
        return 1 if "/" in mark.args[0] else 0
    return 2 if "slow" in item.keywords or "over_a_second" in item.keywords else 3


@pytest.hookimpl(wrapper=True)
def pytest_collection_finish(session: pytest.Session) -> Iterator[None]:
    """Tell the scheduler of pytest-xdist which group a test is in: at the end of its id.

    pytest-xdist 3.8 writes that where pytest 9.2 does not look, and without it every worker starts
    a Spark and a broker of its own (https://github.com/pytest-dev/pytest-xdist/issues/1386).
    """
    if session.config.getoption("loadgroup", False):
        session.items.sort(key=its_turn)
        for item in session.items:
            mark = item.get_closest_marker("xdist_group")
            if mark is not None and not item.nodeid.endswith(f"@{mark.args[0]}"):
                item._id = type(item._id).parse(f"{item.nodeid}@{mark.args[0]}")
                assert item.nodeid.endswith(f"@{mark.args[0]}")
    yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.stop()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="fail the run if any test was skipped")
    told = "brokers of tests have their topics in Kafka and their catalog in PostgreSQL"
    parser.addoption("--on-kafka", action="store_true", help=told)
    told = "tests have their files in memory, if it is enough, and kill tests on the disk"
    parser.addoption("--in-memory", action="store_true", help=told)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--in-memory"):
        scratch.use_memory()
    if config.getoption("--on-kafka"):
        on_kafka.active = on_kafka.KafkaBackends()


def pytest_unconfigure(config: pytest.Config) -> None:
    if on_kafka.active is not None:
        on_kafka.active.stop()
        on_kafka.active = None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not session.config.getoption("--no-skips"):
        return
    skipped = len(reporter.stats.get("skipped", ()))
    if skipped and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.write_line(f"\n{skipped} skipped, and this run promises to skip nothing", red=True)
