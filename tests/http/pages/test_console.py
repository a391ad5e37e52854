"""`/`: are the files of the console what a browser may safely be given?"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from penstock import __version__
from penstock.console.files import STATIC, TYPES
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.each import each
from tests.http.asking import Asking

FILES = sorted(path.name for path in STATIC.iterdir())
LOADED_BYTES_MAX = 100_000  # by a browser that opens the console, all headers included


def test_every_file_is_served_with_its_type_and_the_policy(client: Asking) -> None:
    assert "index.html" in FILES and "app.js" in FILES
    for name in FILES:
        answer = client.ask("GET", f"/console/{name}")
        assert answer.status == 200, name
        assert answer.headers["content-type"] == TYPES[Path(name).suffix]
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
    assert client.ask("GET", "/").body == (STATIC / "index.html").read_bytes()


def test_a_browser_loads_all_files_compressed_and_they_are_small(client: Asking) -> None:
    loaded = 0
    for name in FILES:
        answer = client.ask("GET", f"/console/{name}", Accept_Encoding="gzip, deflate, br")
        assert answer.headers["content-encoding"] == "gzip"
        assert gzip.decompress(answer.body) == (STATIC / name).read_bytes()
        loaded += len(answer.body) + sum(
            len(key + text) + 4 for key, text in answer.headers.items()
        )
    assert loaded < LOADED_BYTES_MAX / 2


@each("accepts", ["identity", "gzip;q=0, identity", "gzip; q=0.0", "br", ""])
def test_who_does_not_take_gzip_gets_the_file_as_it_is(client: Asking, accepts: str) -> None:
    answer = client.ask("GET", "/console/app.js", Accept_Encoding=accepts)
    assert "content-encoding" not in answer.headers
    assert answer.body == (STATIC / "app.js").read_bytes()


# Colours of text, each with the grounds it is shown on.
GROUNDS = {
    "--text": ("--ground", "--card", "--tint"),
    "--soft": ("--ground", "--card", "--tint"),
    "--accent": ("--ground", "--card", "--tint"),
    "--bad": ("--ground", "--card", "--tint"),
    "--good": ("--ground", "--card", "--tint"),
    "--warn": ("--ground", "--card", "--tint"),
    **{f"--c{number}": ("--card",) for number in range(4)},
    "--on-accent": ("--accent",),
    "--on-side": ("--side", "--side-tint"),
    "--card": ("--bad", "--text"),  # dangerous buttons, messages at the edge of the page
}


def themes() -> list[dict[str, str]]:
    """The colours of the light theme, the dark one, and the dark one that was chosen."""
    found = []
    for line in (STATIC / "console.css").read_text().splitlines():
        colours = dict(re.findall(r"(--[a-z0-9-]+): (#[0-9a-f]{3,6})", line))
        if colours:
            found.append(colours)
    return found


def luminance(colour: str) -> float:
    """As WCAG 2.2 defines it."""
    digits = colour[1:] if len(colour) == 7 else "".join(one * 2 for one in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_every_text_colour_has_enough_contrast_in_both_themes() -> None:
    light, dark, chosen = themes()
    assert dark == chosen and light.keys() == dark.keys()
    for colours in (light, dark):
        pale = {
            (front, back): round(contrast(colours[front], colours[back]), 2)
            for front, backs in GROUNDS.items()
            for back in backs
            if contrast(colours[front], colours[back]) < 4.5
        }
        assert pale == {}


def test_what_has_the_focus_can_be_told_from_its_ground() -> None:
    for colours in themes():
        for ground in ("--ground", "--card"):
            assert contrast(colours["--accent"], colours[ground]) >= 3
        assert contrast("#ffffff", colours["--side"]) >= 3


def test_pages_have_no_inline_script_and_name_no_other_server() -> None:
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon[a-z]+=", page)
    for name in FILES:
        text = (STATIC / name).read_text()
        addresses = re.findall(r"https?://[^\s\"'`)]*", text)
        assert [one for one in addresses if "www.w3.org" not in one] == [], name
        assert "innerHTML" not in text and "eval(" not in text, name


def test_every_file_that_a_file_names_exists() -> None:
    for name in FILES:
        text = (STATIC / name).read_text()
        named = re.findall(r'from "\./([^"]+)"', text) + re.findall(r'"/console/([^"]+)"', text)
        assert [one for one in named if one not in FILES] == [], name


def test_a_browser_that_has_a_file_is_not_sent_it_again(client: Asking) -> None:
    for accepts in ("identity", "gzip"):
        whole = client.ask("GET", "/console/app.js", Accept_Encoding=accepts)
        tag = whole.headers["etag"]
        again = client.ask("GET", "/console/app.js", Accept_Encoding=accepts, If_None_Match=tag)
        assert (again.status, again.body) == (304, b"")


def test_a_file_that_is_not_part_of_the_console_is_not_found(client: Asking) -> None:
    for name in ("console.py", "..%2fconsole.py", "%2e%2e", "nothing.js"):
        assert client.ask("GET", f"/console/{name}").status == 404, name


def test_head_has_the_same_headers_and_no_body(client: Asking) -> None:
    whole, head = client.ask("GET", "/"), client.ask("HEAD", "/")
    assert (head.status, head.body) == (200, b"")
    dated = {"date"}
    assert {k: v for k, v in head.headers.items() if k not in dated} == {
        k: v for k, v in whole.headers.items() if k not in dated
    }


def test_programs_get_json_as_before(client: Asking) -> None:
    assert client.ask("GET", "/nothing", Accept="text/html").detail
    assert client.ask("POST", "/").detail
    assert client.ask("GET", "/topics", Accept="text/html").json["status"] == "success"
    assert "/" not in client.ask("GET", "/v1/openapi.json").json["paths"]


def test_once_there_are_users_a_stranger_gets_the_sign_in_page_and_learns_nothing(
    tmp_path: Path,
) -> None:
    add_users(tmp_path, alice="secret")
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:
        answer = client.ask("GET", "/")
        assert answer.status == 200
        assert __version__ not in answer.body.decode()
        for path in ("/v1/me", "/v1/overview", "/v1/retained", "/v1/pipelines"):
            assert client.ask("GET", path).status == 401, path
