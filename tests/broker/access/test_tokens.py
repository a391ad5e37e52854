"""Which tokens are accepted, and what do they say?"""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import hashes, hmac, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from penstock.broker.access.tokens import Token, Tokens, TokenSettings, looks_like_token
from penstock.model.clock import ManualClock
from penstock.model.errors import InvalidSetting, NotAuthorized
from tests.doors.tokens import ALGORITHMS, AUDIENCE, ISSUER, Issuer, unsigned

NOW_S = 1_800_000_000


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


def make(issuer: Issuer, **changes: Any) -> Tokens:
    values = {
        "keys": issuer.file,
        "issuer": ISSUER,
        "audience": AUDIENCE,
        "leeway_s": 30.0,
        "user_claim": "sub",
        "tenant_claim": "tenant",
        "roles_claim": "roles",
        "client_claim": "client_id",
        "default_roles": ("client",),
    }
    return Tokens(TokenSettings(**(values | changes)), ManualClock(NOW_S * 1_000_000))


def sign(issuer: Issuer, **claims: Any) -> bytes:
    return issuer.sign(claims.pop("sub", "alice"), **({"exp": NOW_S + 60} | claims)).encode()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_says_who_it_is_and_until_when(issuer: Issuer, algorithm: str) -> None:
    said = {"tenant": "acme", "roles": ["reader", "sensor"], "client_id": "c1"}
    text = sign(issuer, algorithm=algorithm, **said)
    assert looks_like_token(text)
    token = Token("alice", "acme", ("reader", "sensor"), "c1", (NOW_S + 90) * 1_000_000)
    tokens = make(issuer)
    assert tokens.check(text) == tokens.check(text) == token


def test_what_a_token_does_not_say_is_empty_and_its_roles_are_those_of_the_settings(
    issuer: Issuer,
) -> None:
    token = make(issuer).check(sign(issuer))
    assert (token.tenant, token.roles, token.client_id) == ("", ("client",), "")


def test_claims_may_be_inside_objects_and_roles_one_text(issuer: Issuer) -> None:
    tokens = make(issuer, roles_claim="realm.roles", user_claim="https://a.b/user")
    text = sign(issuer, realm={"roles": "b a b"}, **{"https://a.b/user": "bob"})
    token = tokens.check(text)
    assert (token.user, token.roles) == ("bob", ("a", "b"))


@pytest.mark.parametrize(
    ("claims", "complaint"),
    [
        ({"exp": NOW_S - 31}, "has expired"),
        ({"exp": None}, "exp"),
        ({"exp": "soon"}, "'exp' is not a time"),
        ({"exp": True}, "'exp' is not a time"),
        ({"nbf": NOW_S + 31}, "not valid yet"),
        ({"nbf": []}, "'nbf' is not a time"),
        ({"iss": "https://evil.example"}, "issuer"),
        ({"iss": None}, "iss"),
        ({"aud": "others"}, "udience"),
        ({"aud": None}, "aud"),
        ({"sub": None}, "no claim 'sub'"),
        ({"tenant": ["a"]}, "'tenant' is not a text"),
        ({"client_id": "x" * 300}, "'client_id' is not a text"),
        ({"roles": {"a": 1}}, "'roles' is neither"),
        ({"roles": ["a"] * 101}, "'roles' is neither"),
    ],
)
def test_a_token_that_does_not_fit_is_refused(
    issuer: Issuer, claims: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(NotAuthorized, match=complaint):
        make(issuer).check(sign(issuer, **claims))


def test_the_leeway_is_for_both_ends(issuer: Issuer) -> None:
    assert make(issuer).check(sign(issuer, exp=NOW_S - 29, nbf=NOW_S + 29)).user == "alice"


def test_a_token_that_was_right_expires_all_the_same(issuer: Issuer) -> None:
    tokens = make(issuer)
    clock = tokens._clock
    assert isinstance(clock, ManualClock)
    text = sign(issuer)
    tokens.check(text)
    clock.advance(90)
    with pytest.raises(NotAuthorized, match="has expired"):
        tokens.check(text)


GOOD = {"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "exp": NOW_S + 60}


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", "HS256", "ES256", None, 7, []])
def test_a_token_without_a_signature_is_refused(issuer: Issuer, algorithm: object) -> None:
    for head in ({"alg": algorithm}, {"alg": algorithm, "kid": "HS256"}):
        with pytest.raises(NotAuthorized):
            make(issuer).check(unsigned(GOOD, **head).encode())


@pytest.mark.parametrize("form", ["pem", "der", "jwk"])
def test_the_public_half_of_a_key_is_no_secret_to_sign_with(issuer: Issuer, form: str) -> None:
    public = issuer.keys["RS256"].public_key()
    pem = public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    der = public.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    secret = {"pem": pem, "der": der, "jwk": json.dumps(issuer.jwk("RS256")).encode()}[form]
    for key_id in ("RS256", "HS256", None):
        head = {"alg": "HS256"} if key_id is None else {"alg": "HS256", "kid": key_id}
        text = unsigned(GOOD, **head).rstrip(".")
        made = hmac.HMAC(secret, hashes.SHA256())
        made.update(text.encode())
        signature = base64.urlsafe_b64encode(made.finalize()).rstrip(b"=")
        with pytest.raises(NotAuthorized):
            make(issuer).check(text.encode() + b"." + signature)


@pytest.mark.parametrize("algorithm", ["RS512", "PS256", "HS512"])
def test_other_algorithms_of_a_known_key_are_refused(issuer: Issuer, algorithm: str) -> None:
    key = issuer.keys["HS256" if algorithm == "HS512" else "RS256"]
    text = jwt.encode(GOOD, key, algorithm)
    with pytest.raises(NotAuthorized, match=algorithm):
        make(issuer).check(text.encode())


def test_a_key_that_the_token_brings_along_counts_for_nothing(issuer: Issuer) -> None:
    mine = ec.generate_private_key(ec.SECP256R1())
    row = json.loads(ECAlgorithm.to_jwk(mine.public_key()))
    head = {"jwk": row, "kid": "ES256", "jku": issuer.file.as_uri()}
    with pytest.raises(NotAuthorized):
        make(issuer).check(jwt.encode(GOOD, mine, "ES256", headers=head).encode())


def test_a_token_names_its_key_or_any_of_its_kind_will_do(issuer: Issuer) -> None:
    text = jwt.encode(GOOD, issuer.keys["ES256"], "ES256").encode()
    assert make(issuer).check(text).user == "alice"
    other = jwt.encode(GOOD, issuer.keys["ES256"], "ES256", headers={"kid": "older"}).encode()
    with pytest.raises(NotAuthorized, match="older"):
        make(issuer).check(other)


@given(st.binary(max_size=200) | st.text(max_size=80).map(lambda text: text.encode()))
def test_whatever_is_no_token_is_refused(issuer_file: Issuer, text: bytes) -> None:
    tokens = make(issuer_file)
    good = sign(issuer_file)
    for hostile in (text, b"eyJ" + text + b"..", good + text + b"x", text + good[2:]):
        with pytest.raises(NotAuthorized):
            tokens.check(hostile)


@pytest.fixture(scope="module")
def issuer_file(issuer: Issuer) -> Issuer:
    return issuer


def test_a_very_long_token_is_not_even_read(issuer: Issuer) -> None:
    with pytest.raises(NotAuthorized, match="too long"):
        make(issuer).check(sign(issuer, more="x" * 9_000))


def test_the_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    issuer.write("RS256")
    tokens = make(issuer)
    old, new = sign(issuer, algorithm="RS256"), sign(issuer, algorithm="ES256")
    assert tokens.check(old).user == "alice"
    with pytest.raises(NotAuthorized):
        tokens.check(new)
    issuer.write("ES256")
    assert tokens.check(new).user == "alice"
    with pytest.raises(NotAuthorized):
        tokens.check(old)


NOT_UTF8 = b'{"keys": [], "\xff": 1}'


@pytest.mark.parametrize(
    "broken", [b"", b"{", b"[]", b'{"keys": []}', b"[" * 100_000, NOT_UTF8, None]
)
def test_a_broken_file_leaves_the_keys_as_they_were(
    tmp_path: Path, broken: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    issuer = Issuer(tmp_path)
    tokens = make(issuer)
    if broken is None:
        issuer.file.unlink()
    else:
        issuer.file.write_bytes(broken)
    for _ in range(3):
        assert tokens.check(sign(issuer, n=time.monotonic_ns())).user == "alice"
    assert len([one for one in caplog.messages if "checked with the keys" in one]) == 1
    with pytest.raises(InvalidSetting):
        tokens.reload(tokens._settings)
    issuer.write("RS256")
    with pytest.raises(NotAuthorized):
        tokens.check(sign(issuer))


def _rsa(bits: int) -> dict[str, Any]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=bits)
    row: dict[str, Any] = json.loads(RSAAlgorithm.to_jwk(key.public_key()))
    return row


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([7], "not an object"),
        ([{"kty": "oct", "k": "c2hvcnQ", "kid": "s"}], "'s' is shorter than 32 bytes"),
        ([{"kty": "oct", "k": "c2hvcnQ", "alg": "RS256"}], "alg 'RS256'"),
        ([{"kty": "EC", "crv": "P-384"}], "crv 'P-384'"),
        ([{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}], "cannot be used"),
        ([{"kty": "RSA", "n": "AQAB", "e": "AQAB", "d": "AQAB"}], "private key"),
        ([{"kty": "RSA"}], "cannot be used"),
        ([_rsa(1024)], "shorter than 2048 bits"),
        ([{"kty": "oct", "k": "A" * 60, "kid": "a"}] * 2, "same 'kid'"),
        ([{"kty": "oct", "k": "A" * 60}] * 33, "has 33 keys"),
        ([{"kty": "oct", "k": "é" * 60}], "cannot be used"),
        ([{"kty": "oct", "k": 7}], "cannot be used"),
        ([{"kty": "RSA", "n": [], "e": {}}], "cannot be used"),
        ([{"kty": "RSA", "n": "AA", "e": "AA"}], "cannot be used"),
        ([{"kty": "OKP", "crv": "Ed25519", "x": 7}], "cannot be used"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(
    tmp_path: Path, rows: list[Any], complaint: str
) -> None:
    issuer = Issuer(tmp_path)
    issuer.file.write_text(json.dumps({"keys": rows}))
    with pytest.raises(InvalidSetting, match=complaint) as raised:
        make(issuer)
    assert str(issuer.file) in str(raised.value)
    assert "AQAB" not in str(raised.value) and "c2hvcnQ" not in str(raised.value)


def test_keys_for_encryption_are_skipped(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    rows = [{"kty": "RSA", "use": "enc"}, issuer.jwk("ES256")]
    issuer.file.write_text(json.dumps({"keys": rows}))
    assert make(issuer).check(sign(issuer)).user == "alice"


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    issuer.file.unlink()
    issuer.file.mkdir()
    with pytest.raises(InvalidSetting, match="cannot be read"):
        make(issuer)
