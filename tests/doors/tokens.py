"""Tokens and the keys that check them, as an identity provider would make them."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER = "https://issuer.example"
AUDIENCE = "penstock"
ALGORITHMS = ("RS256", "ES256", "EdDSA", "HS256")


class Issuer:
    """Has one key of each kind, named after its algorithm, and writes them to `file` as JWKS."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "keys.json"
        self.keys: dict[str, Any] = {
            "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
            "ES256": ec.generate_private_key(ec.SECP256R1()),
            "EdDSA": ed25519.Ed25519PrivateKey.generate(),
            "HS256": b"0123456789abcdef0123456789abcdef",
        }
        self.write()

    @property
    def settings(self) -> dict[str, Any]:
        """Of a broker that accepts these tokens."""
        return {
            "access__jwt_keys": str(self.file),
            "access__jwt_issuer": ISSUER,
            "access__jwt_audience": AUDIENCE,
            "access__jwt_leeway_s": 0,
        }

    def jwk(self, algorithm: str) -> dict[str, Any]:
        """The public half, or the secret."""
        key = self.keys[algorithm]
        if algorithm == "HS256":
            row = {"kty": "oct", "k": base64.urlsafe_b64encode(key).rstrip(b"=").decode()}
        else:
            kinds = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}
            row = json.loads(kinds[algorithm].to_jwk(key.public_key()))
        return row | {"kid": algorithm}

    def write(self, *algorithms: str) -> None:
        """Those keys, or all of them; the file is replaced, as people do who are careful."""
        rows = [self.jwk(one) for one in algorithms or ALGORITHMS]
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps({"keys": rows}))
        new.replace(self.file)

    def sign(self, user: str | None, *, algorithm: str = "ES256", **claims: Any) -> str:
        """A token; a claim that is None is left out."""
        said = {"sub": user, "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 600} | claims
        payload = {name: value for name, value in said.items() if value is not None}
        return jwt.encode(payload, self.keys[algorithm], algorithm, headers={"kid": algorithm})


def unsigned(claims: dict[str, Any], **head: Any) -> str:
    """A token without a signature."""

    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'typ': 'JWT'} | head)}.{part(claims)}."
