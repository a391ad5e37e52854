"""`penstock pub` and `penstock sub` against a broker: letters, outcomes, exit codes."""

from __future__ import annotations

import base64
import io
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import pytest

from penstock.cli.main import main
from penstock.cli.mqtt.line import CLOSINGS_MAX
from tests.cli.conftest import Outcome
from tests.doors.certificates import Authority
from tests.doors.login.test_mqtt_tls import tls_port
from tests.doors.served import Served
from tests.doors.users import add_users

COMMAND = [sys.executable, "-m", "penstock.cli.main"]
VERSIONS = pytest.mark.parametrize("version", ["31", "311", "5"])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("data")) as served:
        yield served


def invoke(*arguments: str) -> Outcome:
    """A command in this process."""
    out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as left:
            code = int(left.code or 0)
    out.flush()
    out.seek(0)
    return Outcome(code, out.read(), err.getvalue())


def pub(port: int, *arguments: str, stdin: bytes = b"", host: str = "127.0.0.1") -> Outcome:
    command = ["pub", "-h", host, "-p", str(port), *arguments]
    if not stdin:
        return invoke(*command)
    done = subprocess.run(
        [*COMMAND, *command], input=stdin, capture_output=True, timeout=60, check=False
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


class Sub:
    """A running `penstock sub` that has subscribed."""

    def __init__(self, port: int, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, "sub", "-h", "127.0.0.1", "-p", str(port), "-d", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.debug = b""
        self.wait_for(b"received Suback")

    def wait_for(self, beginning: bytes) -> None:
        """Until it says a line that begins so on standard error."""
        for line in self._stderr:
            self.debug += line
            if line.startswith(beginning):
                return
        raise AssertionError(self.debug.decode())

    @property
    def _stderr(self) -> IO[bytes]:
        assert self._process.stderr is not None
        return self._process.stderr

    def result(self) -> tuple[int, bytes]:
        """Waits for its end: exit code and output."""
        out, rest = self._process.communicate(timeout=60)
        self.debug += rest
        return self._process.returncode, out

    def interrupt(self) -> None:
        self._process.send_signal(2)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()


def run_sub(port: int, *arguments: str) -> Outcome:
    return invoke("sub", "-h", "127.0.0.1", "-p", str(port), *arguments)


@VERSIONS
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_a_message_arrives_in_every_version_at_every_qos(
    broker: Served, version: str, qos: str
) -> None:
    name = f"v{version}/q{qos}"
    flags = ("-V", version, "-q", qos)
    with Sub(broker.port, "-t", f"v{version}/+", "-C", "2", "-v", *flags) as reader:
        for text in ("one", "two"):
            answer = pub(broker.port, "-t", name, "-m", text, *flags)
            assert (answer.code, answer.err) == (0, "")
        assert reader.result() == (0, f"{name} one\n{name} two\n".encode())


def test_where_the_message_comes_from(broker: Served, tmp_path: Path) -> None:
    file = tmp_path / "payload"
    file.write_bytes(b"\x00\xff file")
    with Sub(broker.port, "-t", "from", "-C", "7", "--json", "-q", "1") as reader:
        for arguments, stdin in (
            (("-m", "text ü"), b""),
            (("-f", str(file)), b""),
            (("-n",), b""),
            (("-s",), b"all\nof it\n"),
            (("-l",), b"first\r\n\nlast"),
        ):
            assert pub(broker.port, "-t", "from", "-q", "1", *arguments, stdin=stdin).err == ""
        code, out = reader.result()
    got = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [one.get("payload") for one in got] == [
        "text ü",
        None,
        "",
        "all\nof it\n",
        "first",
        "",
        "last",
    ]
    assert base64.b64decode(got[1]["payload_base64"]) == b"\x00\xff file"


@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_many_lines_arrive_in_order(broker: Served, qos: str) -> None:
    lines = [b"line %d" % number for number in range(3000)]
    with Sub(broker.port, "-t", "lines", "-C", "3000", "-q", qos) as reader:
        answer = pub(
            *(broker.port, "-t", "lines", "-l", "-q", qos, "--json"), stdin=b"\n".join(lines)
        )
        assert json.loads(answer.out) == {"published": 3000, "name": "lines", "qos": int(qos)}
        code, out = reader.result()
    assert code == 0 and out.splitlines() == lines


def test_repeat_publishes_as_often(broker: Served) -> None:
    with Sub(broker.port, "-t", "again", "-C", "4", "-N") as reader:
        pub(broker.port, "-t", "again", "-m", "x", "--repeat", "3", "--repeat-delay", "0.01")
        pub(broker.port, "-t", "again", "-m", "y")
        assert reader.result() == (0, b"xxxy")


def test_properties_go_along_and_are_shown(broker: Served) -> None:
    with Sub(
        *(broker.port, "-t", "props", "-C", "1", "--json"),
        *("-D", "subscribe", "subscription-identifier", "7"),
    ) as reader:
        answer = pub(
            *(broker.port, "-t", "props", "-m", "{}"),
            *("-D", "publish", "content-type", "application/json"),
            *("-D", "publish", "user-property", "a", "1"),
            *("-D", "publish", "user-property", "a", "2"),
            *("-D", "PUBLISH".lower(), "message-expiry-interval", "60"),
            *("-D", "publish", "correlation-data", "key"),
        )
        assert answer.err == ""
        shown = json.loads(reader.result()[1])
    assert shown["content_type"] == "application/json"
    assert shown["headers"] == [["a", "1"], ["a", "2"]]
    assert shown["message_expiry_interval"] in (59, 60)
    assert shown["correlation_data"] == base64.b64encode(b"key").decode()
    assert shown["subscription_identifiers"] == [7]


@pytest.mark.parametrize("text", ["²", "٣", "1" * 5_000, ""])
def test_an_offset_that_somebody_made_up_is_shown_as_it_is(broker: Served, text: str) -> None:
    with Sub(broker.port, "-t", "made-up", "-C", "1", "--json") as reader:
        pairs = [("penstock-topic", "t"), ("penstock-offset", text)]
        given = [part for pair in pairs for part in ("-D", "publish", "user-property", *pair)]
        assert pub(broker.port, "-t", "made-up", "-m", "x", *given).code == 0
        code, out = reader.result()
    assert (code, json.loads(out)["offset"]) == (0, text)


def test_a_retained_message_is_there_for_later_readers_and_can_be_left_out(broker: Served) -> None:
    assert pub(broker.port, "-t", "kept/a", "-m", "old", "-r", "-q", "1").code == 0
    answer = run_sub(broker.port, "-t", "kept/#", "-C", "1", "-v")
    assert answer.out == "kept/a old\n"
    with Sub(broker.port, "-t", "kept/#", "-C", "1", "-R") as reader:
        pub(broker.port, "-t", "kept/a", "-m", "new", "-q", "1")
        assert reader.result() == (0, b"new\n")
    pub(broker.port, "-t", "kept/a", "-n", "-r", "-q", "1")
    answer = run_sub(broker.port, "-t", "kept/#", "-W", "0.5")
    assert (answer.code, answer.out) == (0, "")


@VERSIONS
def test_a_session_that_stays_gets_what_it_missed(broker: Served, version: str) -> None:
    me = ("-i", f"stays{version}", "-c", "-V", version, "-q", "1", "-t", f"stay{version}/#")
    assert run_sub(broker.port, *me, "-E").code == 0
    for text in ("a", "b"):
        pub(broker.port, "-t", f"stay{version}/x", "-m", text, "-q", "1")
    answer = run_sub(broker.port, *me, "-C", "2")
    assert answer.out == "a\nb\n"
    # Shown means acknowledged: they do not come again.
    assert run_sub(broker.port, *me, "-W", "0.5").out == ""


def test_waiting_for_messages_that_do_not_come_ends_with_3(broker: Served) -> None:
    answer = run_sub(broker.port, "-t", "silent", "-C", "1", "-W", "0.2")
    assert (answer.code, answer.out) == (3, "")


def test_an_unsubscribed_filter_is_given_back(broker: Served) -> None:
    me = ("-i", "gives-back", "-c", "-q", "1")
    assert run_sub(broker.port, *me, "-t", "given/#", "-E").code == 0
    assert run_sub(broker.port, *me, "-t", "other", "-U", "given/#", "-E").code == 0
    pub(broker.port, "-t", "given/a", "-m", "x", "-q", "1")
    pub(broker.port, "-t", "other", "-m", "y", "-q", "1")
    assert run_sub(broker.port, *me, "-t", "other", "-C", "1", "-v").out == "other y\n"


def test_ctrl_c_takes_leave(broker: Served) -> None:
    with Sub(broker.port, "-t", "never") as reader:
        reader.interrupt()
        code, out = reader.result()
        assert (code, out) == (130, b"")
        assert b"sent     Disconnect" in reader.debug


def test_the_password_is_not_among_what_debug_shows(broker: Served) -> None:
    answer = pub(broker.port, "-t", "a", "-m", "x", "-d", "-u", "me", "-P", "hush")
    assert answer.code == 0
    assert "sent     Connect(" in answer.err and "hush" not in answer.err


def test_logging_in(tmp_path: Path) -> None:
    add_users(tmp_path, alice="wonder")
    file = tmp_path / "password"
    file.write_text("wonder\n")
    with Served(tmp_path) as broker:
        for flags in (("-P", "wonder"), ("--password-file", str(file))):
            assert pub(broker.port, "-t", "a", "-m", "x", "-u", "alice", *flags).code == 0
        for version, flags, complaint in (
            ("5", ("-u", "alice", "-P", "no"), "bad user name or password (0x86)"),
            ("311", ("-u", "alice", "-P", "no"), "bad user name or password"),
            ("5", (), "not authorized (0x87)"),
        ):
            answer = pub(broker.port, "-t", "a", "-m", "x", "-V", version, *flags)
            assert answer.code == 1
            assert "the server rejected the connection: " + complaint in answer.err


def test_over_tls_the_server_is_checked(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.sign("server")  # for 127.0.0.1
    (tmp_path / "elsewhere").mkdir()
    other = Authority(tmp_path / "elsewhere", "other")
    flags = ("--tls-cert", str(cert), "--tls-key", str(key), "--tls-client-ca", str(authority.cert))
    client = authority.sign("pump")
    message = ("-t", "a", "-m", "x", "-q", "1")
    trusted = ("--cafile", str(authority.cert))
    with Served(tmp_path / "data", "--mqtts", "127.0.0.1:0", *flags) as broker:
        port = tls_port(broker)
        assert pub(port, *message, *trusted).code == 0
        certified = ("--cert", str(client[0]), "--key", str(client[1]))
        assert pub(port, *message, *trusted, *certified).code == 0
        answer = pub(port, *message, "--cafile", str(other.cert))
        assert answer.code == 3 and "its certificate is not trusted" in answer.err
        answer = pub(port, *message, *certified)
        assert answer.code == 2 and "give --cafile or --tls" in answer.err
    with Served(tmp_path / "data", "--mqtts", "127.0.0.2:0", *flags) as broker:
        port = tls_port(broker)
        answer = pub(port, *message, *trusted, host="127.0.0.2")
        assert answer.code == 3 and "its certificate is not trusted" in answer.err
        assert pub(port, *message, *trusted, "--insecure", host="127.0.0.2").code == 0


def test_nobody_there_is_3_and_says_so() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        for answer in (pub(port, "-t", "a", "-m", "x"), run_sub(port, "-t", "a")):
            assert answer.code == 3
            expected = f"cannot connect to 127.0.0.1:{port}: Connection refused"
            assert expected in answer.err


def test_a_server_that_goes_away_is_3(tmp_path: Path) -> None:
    broker = Served(tmp_path).start()
    with Sub(broker.port, "-t", "a", "-V", "311", "--no-reconnect") as reader:
        broker.kill()
        code, _ = reader.result()
        assert code == 3 and b"the connection was lost" in reader.debug


def test_a_refused_message_is_1(broker: Served) -> None:
    answer = pub(broker.port, "-t", "$SYS/a", "-m", "x", "-q", "1")
    assert answer.code == 1
    assert (
        "the server rejected the message: not authorized (0x87): publishing to '$SYS/a'"
        in answer.err
    )


@pytest.mark.parametrize("qos", ["1", "2"])
def test_a_message_that_closes_the_connection_again_and_again_is_1(
    broker: Served, qos: str
) -> None:
    answer = pub(broker.port, "-t", "$SYS/a", "-m", "x", "-q", qos, "-V", "311")
    assert answer.code == 1
    assert answer.err.count("reconnected") == CLOSINGS_MAX - 1
    assert f"closed the connection {CLOSINGS_MAX} times" in answer.err
    assert "the message '$SYS/a'" in answer.err


def test_a_server_without_tls_is_named_as_such(broker: Served) -> None:
    answer = pub(broker.port, "-t", "a", "-m", "x", "--tls")
    assert answer.code == 3
    assert (
        "the TLS handshake failed (closed by the server); check that this port uses TLS"
        in answer.err
    )


def test_a_server_of_something_else_is_named_as_such(broker: Served) -> None:
    answer = pub(broker.http_port, "-t", "a", "-m", "x")
    assert answer.code == 1
    assert f"the server at 127.0.0.1:{broker.http_port} does not speak MQTT" in answer.err


@pytest.mark.parametrize(
    ("option", "arguments"),
    [
        ("--file", ["-f", "nofile"]),
        ("--password-file", ["-m", "x", "-u", "me", "--password-file", "nofile"]),
        ("--cafile", ["-m", "x", "--cafile", "nofile"]),
        ("--cert", ["-m", "x", "--tls", "--cert", "nofile", "--key", "nofile"]),
    ],
)
def test_a_file_that_is_not_there_is_named_with_its_option(
    option: str, arguments: list[str]
) -> None:
    answer = invoke("pub", "-t", "a", *arguments)
    assert answer.code == 1
    expected = f"penstock: {option} 'nofile' cannot be read: No such file or directory\n"
    assert answer.err == expected


def test_tls_files_that_do_not_do_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("me")
    plain = tmp_path / "plain.txt"
    plain.write_text("hello")
    for arguments, complaint in (
        (
            ["--cert", str(certificate)],
            f"--cert {str(certificate)!r} contains no certificate with its",
        ),
        (["--cert", str(plain), "--key", str(key)], f"--cert {str(plain)!r} with --key"),
        (["--cafile", str(plain)], f"--cafile {str(plain)!r} cannot be used: "),
    ):
        answer = invoke("pub", "-t", "a", "-m", "x", "--tls", *arguments)
        assert answer.code == 1 and complaint in answer.err


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["pub", "-t", "a+", "-m", "x"], 1, "contains '+'"),
        (["pub", "-t", "a"], 2, "one of the arguments"),
        (["pub", "-t", "a", "-m", "x", "-n"], 2, "not allowed with"),
        (["pub", "-m", "x"], 2, "-t"),
        (["pub", "-t", "a", "-m", "x", "-q", "3"], 2, "from 0 to 2"),
        (["pub", "-t", "a", "-m", "x", "-P", "x"], 2, "also give --username"),
        (["pub", "-t", "a", "-m", "x", "-i", "a", "-I", "b"], 2, "not both"),
        (["pub", "-t", "a", "-m", "x", "--will-payload", "b"], 2, "also give --will-topic"),
        (["pub", "-t", "a", "-m", "x", "-V", "311", "-x", "5"], 2, "need MQTT 5"),
        (["pub", "-t", "a", "-m", "x", "-D", "publish", "colour", "red"], 2, "content-type"),
        (["pub", "-t", "a", "-m", "x", "-D", "puback", "a", "b"], 2, "use one of connect"),
        (["pub", "-t", "a", "-m", "x", "-D", "publish", "user-property", "a"], 2, "2 values"),
        (["sub", "-t", "a/#/b"], 1, "has a level after '#'"),
        (["sub", "-v"], 2, "give it with -t FILTER"),
        (["sub", "-t", "a", "-c"], 2, "needs --id"),
        (["sub", "-t", "a", "--from", "yesterday"], 1, "is not a position"),
        (["sub", "-t", "a", "--where", "payload ="], 1, "a value is missing"),
        (["sub", "-t", "a", "--from", "-1h", "-V", "311"], 2, "need MQTT 5"),
        (["sub", "-t", "a", "-F", "%t %y"], 2, "unknown field %y"),
        (["sub", "-t", "a", "-F", "\\q"], 2, "contains the unknown escape"),
        (["sub", "-L", "http://localhost/a"], 2, "write mqtt"),
        (["pub", "-L", "mqtt://localhost:99999/a", "-m", "x"], 2, "write mqtt"),
        (["sub", "-t", "a", "-C", "0"], 2, "from 1 to"),
        (["sub", "-t", "a", "-x", "-2"], 2, "'-2' is not a whole number from 0"),
        (
            ["pub", "-t", "a", "-m", "x", "-D", "publish", "subscription-identifier", "1"],
            2,
            "not a prop",
        ),
        (["pub", "-t", "a", "-m", "x", "--colour"], 2, "usage: penstock pub -t NAME"),
        (["sub", "-t", "a", "--colour"], 2, "usage: penstock sub -t FILTER"),
    ],
)
def test_mistakes_are_told_before_anything_is_sent(
    arguments: list[str], code: int, complaint: str
) -> None:
    answer = invoke(*arguments)
    assert answer.code == code
    assert complaint in answer.err


def test_a_password_in_a_url_is_not_repeated() -> None:
    answer = invoke("sub", "-L", "mqtt://me:secret@localhost:99999/a")
    assert answer.code == 2 and "'mqtt://localhost:99999/a' is invalid" in answer.err


@pytest.mark.parametrize("forever", ["-1", "∞", "4294967295"])
def test_a_session_may_stay_for_ever(broker: Served, forever: str) -> None:
    with Sub(broker.port, "-t", "a", "-x", forever, "-E") as reader:
        assert reader.result()[0] == 0
        assert b"session_expiry_interval=4294967295" in reader.debug


@pytest.mark.parametrize("command", ["pub", "sub"])
def test_help_is_a_long_word_because_h_is_the_host(command: str) -> None:
    answer = invoke(command, "--help")
    assert answer.code == 0 and "-h HOST" in answer.out
