"""Tokens that somebody else signs (JWT): the keys that check them, and what a token says.

A key decides the algorithm it is used with, never the token: an RSA key checks RS256, a key on the
curve P-256 ES256, an Ed25519 key EdDSA, and a secret HS256. The keys are in a JWKS file (RFC 7517),
which is read again when it changes; a file that cannot be used leaves the keys as they were.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.broker.upkeep.watched_files import identity_of
from penstock.core.access import is_role_name
from penstock.core.naming.names import quoted
from penstock.model.clock import Clock
from penstock.model.errors import InvalidSetting, NotAuthorized
from penstock.model.limits import KIB, MIB

if TYPE_CHECKING:
    from jwt import PyJWK

LOG: Final = logging.getLogger("penstock.access")
TOKEN_BYTES_MAX: Final = 8 * KIB
FILE_BYTES_MAX: Final = 1 * MIB
KEYS_MAX: Final = 32  # a token that names no key is tried with each: about 0.1 ms for one
REMEMBERED_MAX: Final = 1_000  # tokens found right, each up to 8 KiB and its claims
SECRET_BYTES_MIN: Final = 32  # of HS256 (RFC 7518 §3.2)
RSA_BITS_MIN: Final = 2_048  # of RS256 (RFC 7518 §3.3)
ROLES_MAX: Final = 100
CLAIM_CHARS_MAX: Final = 255  # in the name of a user, a role or a client

# What a key is (kty, crv): what it checks.
ALGORITHMS: Final = {
    ("RSA", None): "RS256",
    ("EC", "P-256"): "ES256",
    ("OKP", "Ed25519"): "EdDSA",
    ("oct", None): "HS256",
}


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Which tokens are accepted, and which of their claims say who it is."""

    keys: Path
    issuer: str
    audience: str
    leeway_s: float
    user_claim: str
    tenant_claim: str
    roles_claim: str
    client_claim: str
    default_roles: tuple[str, ...]  # of a token without a claim of roles


@dataclass(frozen=True, slots=True)
class Token:
    """What a token says that was found right. Empty texts: the token does not say."""

    user: str
    tenant: str
    roles: tuple[str, ...]
    client_id: str
    expires_us: int  # the leeway included


def looks_like_token(password: bytes) -> bool:
    """Three parts with dots between them, the first of which begins a JSON object."""
    return password.startswith(b"eyJ") and password.count(b".") == 2


def check_installed() -> None:
    """InvalidSetting if the packages are missing that check signatures."""
    for package in ("jwt", "cryptography"):
        if find_spec(package) is None:
            raise InvalidSetting(
                f"[access] jwt_keys needs the package {package}, which is not installed:"
                " pip install 'penstock[jwt]'"
            )


class Tokens:
    """Checks tokens. Reads the file of keys when it is made, and InvalidSetting says why not."""

    def __init__(self, settings: TokenSettings, clock: Clock) -> None:
        check_installed()
        self._settings = settings
        self._clock = clock
        self._read_as = identity_of([settings.keys])
        self._keys = read_keys(settings.keys)
        self._remembered: dict[bytes, Token] = {}

    def reload(self, settings: TokenSettings) -> None:
        """Go by these settings; InvalidSetting if the file cannot be used, and all stays."""
        read_as = identity_of([settings.keys])
        self._keys = read_keys(settings.keys)
        self._settings, self._read_as = settings, read_as
        self._remembered.clear()

    def _follow_file(self) -> None:
        """Read the file if it has changed. One look costs a system call."""
        read_as = identity_of([self._settings.keys])
        if read_as == self._read_as:
            return
        self._read_as = read_as  # of a file that cannot be used, one warning is enough
        try:
            self.reload(self._settings)
        except InvalidSetting as wrong:
            text = "%(problem)s; tokens are checked with the keys that were read before"
            LOG.warning(text, {"event": "keys not reloaded", "problem": str(wrong)})
        else:
            values = {"event": "keys reloaded", "file": str(self._settings.keys)}
            LOG.info("the keys of tokens were read again from %(file)s", values)

    def check(self, text: bytes) -> Token:
        """What a token says; NotAuthorized if it is not accepted."""
        self._follow_file()
        token = self._remembered.get(text)
        if token is None:
            token = self._read(text)
            if len(self._remembered) >= REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[text] = token
        elif token.expires_us <= self._clock.now_us():
            del self._remembered[text]
            raise NotAuthorized("the token has expired: log in with a new one")
        return token

    def _read(self, text: bytes) -> Token:
        if len(text) > TOKEN_BYTES_MAX:
            raise NotAuthorized(
                f"a token of {len(text)} bytes is too long: at most {TOKEN_BYTES_MAX} are accepted"
            )
        from jwt import PyJWTError, get_unverified_header

        try:
            head = get_unverified_header(text)
        except PyJWTError as wrong:
            raise _refused(wrong) from None
        algorithm, key_id = quoted(str(head.get("alg"))), quoted(str(head.get("kid")))
        failed = NotAuthorized(
            f"the token is not accepted: no known key has the algorithm {algorithm} and the key id"
            f" {key_id}"
        )
        for key in self._candidates(head):
            try:
                return self._claims(text, key)
            except NotAuthorized as wrong:
                failed = wrong
        raise failed

    def _candidates(self, head: dict[str, Any]) -> list[PyJWK]:
        """The keys that may have signed it: the one it names, or all of its algorithm."""
        algorithm, key_id = head.get("alg"), head.get("kid")
        keys = [one for one in self._keys if one.algorithm_name == algorithm]
        if key_id is not None:
            keys = [one for one in keys if one.key_id in (key_id, None)]
        return keys

    def _claims(self, text: bytes, key: PyJWK) -> Token:
        from jwt import PyJWTError, decode

        settings = self._settings
        try:
            claims = decode(
                text,
                key,
                algorithms=[key.algorithm_name],
                issuer=settings.issuer,
                audience=settings.audience,
                # Time is looked at below, by the broker's clock.
                options={
                    "require": ["exp", "iss", "aud"],
                    **{"verify_exp": False, "verify_nbf": False, "verify_iat": False},
                },
            )
        except PyJWTError as wrong:
            raise _refused(wrong) from None
        expires_us = self._check_time(claims)
        user = _text(claims, settings.user_claim)
        if not user:
            raise NotAuthorized(f"the token has no claim {settings.user_claim!r}, the user's name")
        return Token(
            user,
            _text(claims, settings.tenant_claim),
            _roles(claims, settings.roles_claim, settings.default_roles),
            _text(claims, settings.client_claim),
            expires_us,
        )

    def _check_time(self, claims: dict[str, Any]) -> int:
        """When it expires, in µs."""
        now_us = self._clock.now_us()
        leeway_us = int(self._settings.leeway_s * 1_000_000)
        expires_us = _time_us(claims, "exp") + leeway_us
        if expires_us <= now_us:
            raise NotAuthorized("the token has expired: log in with a new one")
        if "nbf" in claims and _time_us(claims, "nbf") - leeway_us > now_us:
            raise NotAuthorized("the token is not valid yet: look at its claim 'nbf' and the clock")
        return expires_us


def read_keys(file: Path) -> list[PyJWK]:
    """The public keys and secrets of a JWKS file; InvalidSetting if it cannot be used."""
    try:
        with file.open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
    except OSError as failed:
        raise InvalidSetting(f"jwt_keys {str(file)!r} cannot be read: {failed.strerror}") from None
    if len(content) > FILE_BYTES_MAX:
        raise _bad_file(file, f"it is larger than {FILE_BYTES_MAX} bytes")
    try:
        document = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise _bad_file(file, str(wrong)) from None
    rows = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not rows:
        raise _bad_file(file, "it has no list 'keys' with a key in it")
    if len(rows) > KEYS_MAX:
        raise _bad_file(file, f"it has {len(rows)} keys, and at most {KEYS_MAX} are allowed")
    keys = [
        _key(file, row)
        for row in rows
        if not isinstance(row, dict) or row.get("use", "sig") == "sig"
    ]
    named = [one.key_id for one in keys if one.key_id is not None]
    if len(set(named)) < len(named):
        raise _bad_file(file, "two keys have the same 'kid'")
    return keys


def _key(file: Path, row: Any) -> PyJWK:
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    if not isinstance(row, dict):
        raise _bad_file(file, "a key in it is not an object")
    kid, kty, crv, alg = (quoted(str(row.get(name))) for name in ("kid", "kty", "crv", "alg"))
    shown = f"the key with kid {kid}"
    curve = None if row.get("crv") is None else str(row["crv"])
    algorithm = ALGORITHMS.get((str(row.get("kty")), curve))
    if algorithm is None or row.get("alg", algorithm) != algorithm:
        raise _bad_file(
            file,
            f"{shown} has kty {kty}, crv {crv} and alg {alg}: keys for RS256, ES256 (P-256), "
            "EdDSA (Ed25519) and HS256 are allowed",
        )
    if row["kty"] != "oct" and "d" in row:
        raise _bad_file(file, f"{shown} is a private key: leave only public keys in the file")
    try:
        key = PyJWK.from_dict(row, algorithm)
    except (PyJWTError, ValueError, TypeError) as wrong:
        raise _bad_file(file, f"{shown} cannot be used: {wrong}") from None
    if row["kty"] == "oct" and len(key.key) < SECRET_BYTES_MIN:
        raise _bad_file(file, f"{shown} is shorter than {SECRET_BYTES_MIN} bytes")
    if row["kty"] == "RSA" and key.key.key_size < RSA_BITS_MIN:
        raise _bad_file(file, f"{shown} is shorter than {RSA_BITS_MIN} bits")
    return key


def _bad_file(file: Path, why: str) -> InvalidSetting:
    return InvalidSetting(f"jwt_keys {str(file)!r} is not a usable JWKS file: {why}")


def _refused(wrong: Exception) -> NotAuthorized:
    return NotAuthorized(f"the token is not accepted: {wrong}")


def _claim(claims: dict[str, Any], name: str) -> Any:
    """A claim by its name; one inside an object is written with dots. None if there is none."""
    if not name or name in claims:
        return claims.get(name)
    found: Any = claims
    for part in name.split("."):
        if not isinstance(found, dict):
            return None
        found = found.get(part)
    return found


def _text(claims: dict[str, Any], name: str) -> str:
    value = _claim(claims, name)
    if value is None:
        return ""
    if not isinstance(value, str) or not 1 <= len(value) <= CLAIM_CHARS_MAX:
        raise NotAuthorized(
            f"the token's claim {name!r} is not a text of 1 to {CLAIM_CHARS_MAX} characters"
        )
    return value


def _roles(claims: dict[str, Any], name: str, default: tuple[str, ...]) -> tuple[str, ...]:
    """A list of texts, or one text with spaces between them, as `scope` is.

    What no role can be called gives nothing.
    """
    value = _claim(claims, name)
    if isinstance(value, str):
        value = value.split()
    if value is None:
        return default
    is_texts = isinstance(value, list) and all(isinstance(one, str) for one in value)
    if not is_texts or len(value) > ROLES_MAX:
        raise NotAuthorized(
            f"the token's claim {name!r} is neither a text nor a list of up to {ROLES_MAX} texts"
        )
    return tuple(sorted({one for one in value if is_role_name(one)}))


def _time_us(claims: dict[str, Any], name: str) -> int:
    value = claims[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < 1e11:  # NaN fits neither
        raise NotAuthorized(f"the token's claim {name!r} is not a time in seconds since 1970")
    return int(value * 1_000_000)
