"""Is it known of every key and every character of a TOML text in which line it stands?"""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.declared.places import Place, Places, find_places

TEXT = '''\
# a comment with [brackets] and "quotes"
top = 1  # and = behind

[pipeline]
trigger = "5s"
"quoted key" = 'literal # no comment'
dotted . key = [1, "two", [3], { four = 4 }] # array

[sources.readings]
sql = """
SELECT a, ""quoted"" \\
   FROM b
WHERE c = '\\u00e4'"""

[[lists.of]]
x = 1
[lists.of.below]
z = \'\'\'
raw \\n
\'\'\'
[[lists.of]]
x = 2
'''


def test_every_key_is_found_in_its_line() -> None:
    places = find_places(TEXT)
    assert {path: place.line for path, place in places.keys.items()} == {
        ("top",): 2,
        ("pipeline",): 4,
        ("pipeline", "trigger"): 5,
        ("pipeline", "quoted key"): 6,
        ("pipeline", "dotted"): 7,
        ("pipeline", "dotted", "key"): 7,
        ("pipeline", "dotted", "key", 0): 7,
        ("pipeline", "dotted", "key", 1): 7,
        ("pipeline", "dotted", "key", 2): 7,
        ("pipeline", "dotted", "key", 2, 0): 7,
        ("pipeline", "dotted", "key", 3): 7,
        ("pipeline", "dotted", "key", 3, "four"): 7,
        ("sources",): 9,
        ("sources", "readings"): 9,
        ("sources", "readings", "sql"): 10,
        ("lists",): 15,
        ("lists", "of"): 15,
        ("lists", "of", 0): 15,
        ("lists", "of", 0, "x"): 16,
        ("lists", "of", 0, "below"): 17,
        ("lists", "of", 0, "below", "z"): 18,
        ("lists", "of", 1): 21,
        ("lists", "of", 1, "x"): 22,
    }


@pytest.mark.parametrize(
    ("fragment", "place"),
    [
        ("SELECT", Place(11, 1)),
        ('""quoted', Place(11, 11)),
        ("FROM", Place(12, 4)),
        ("WHERE", Place(13, 1)),
        ("ä", Place(13, 12)),
        ("'", Place(13, 11)),
    ],
)
def test_a_character_of_a_long_text_is_found_in_its_line(fragment: str, place: Place) -> None:
    sql = tomllib.loads(TEXT)["sources"]["readings"]["sql"]
    assert find_places(TEXT).within(("sources", "readings", "sql"), sql.index(fragment)) == place


def test_what_is_not_there_is_placed_at_the_table_around_it() -> None:
    places = find_places(TEXT)
    assert places.of("sources", "readings", "topic").line == 9
    assert places.of("nothing") == Place(1, 1)
    assert places.within(("pipeline", "trigger"), 99) == Place(5, 13)
    assert places.within(("top",), 3) == Place(2, 1)


def test_windows_line_ends_change_nothing() -> None:
    assert find_places(TEXT.replace("\n", "\r\n")).keys == find_places(TEXT).keys


KEYS = st.text("ab_-é.\"'\\ \n#=[", max_size=4)
TEXTS = st.text("ab\n\t \"'\\é#={}[],\x01", max_size=12)
VALUES = st.recursive(
    st.integers() | st.booleans() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def basic(text: str, *, is_long: bool) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\x01", "\\u0001")
    if is_long:
        return f'"""\n{escaped}"""'
    return '"' + escaped.replace("\n", "\\n").replace("\t", "\\t") + '"'


def written(value: Any, chance: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        if not set(value) & set("'\x01") and chance.draw(st.booleans()):
            return f"'''\n{value}'''"
        return basic(value, is_long=chance.draw(st.booleans()))
    if isinstance(value, list):
        gap = "\n # between\n" if chance.draw(st.booleans()) else ""
        return f"[{gap}" + f",{gap}".join(written(one, chance) for one in value) + f"{gap}]"
    pairs = [f"{basic(key, is_long=False)} = {written(one, chance)}" for key, one in value.items()]
    return "{" + ", ".join(pairs) + "}"


def check(value: Any, path: tuple[str | int, ...], places: Places, text: str) -> None:
    """Every value is known by its path, and every character of a text stands where we say."""
    if path:
        assert path in places.keys
    if isinstance(value, dict):
        for key, one in value.items():
            check(one, (*path, key), places, text)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            check(one, (*path, number), places, text)
    elif isinstance(value, str):
        indexes = places.texts[path]
        assert len(indexes) == len(value)
        for char, index in zip(value, indexes, strict=True):
            assert text[index] in (char, "\\")


@given(st.dictionaries(KEYS, VALUES, max_size=4), st.data())
def test_what_tomllib_reads_is_found_whatever_is_written(
    document: dict[str, Any], chance: Any
) -> None:
    lines = [
        f"{basic(key, is_long=False)} = {written(value, chance)} # end"
        for key, value in document.items()
    ]
    text = "\n\n".join(lines)
    assert tomllib.loads(text) == document
    check(document, (), find_places(text), text)
