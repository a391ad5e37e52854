"""Types of arguments. Importing them loads nothing of a client or a broker."""

from __future__ import annotations

import argparse


def whole_number(text: str) -> int:
    """An argument that counts something: 1, 2, 3, …"""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)
