"""Secrets that people put where they do not belong, such as a key as a user name, are not shown."""

from __future__ import annotations

import re
from typing import Final

_SECRETS: Final = (
    re.compile(r"(psk_)[\w-]{8,}"),  # keys
    re.compile(r"(eyJ)[\w-]+\.[\w-]*\.?[\w-]*"),  # tokens
)


def masked(text: str) -> str:
    """The text without keys and tokens."""
    for secret in _SECRETS:
        text = secret.sub(r"\1…", text)
    return text


def without_login(url: str) -> str:
    """An address as people may see it: a password is for nobody's eyes."""
    return re.sub(r"://.*@", "://", url)
