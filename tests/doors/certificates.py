"""Certificates made for one test run: an authority, and what it signs."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


class Authority:
    """Signs certificates and leaves them in a directory as `<name>.pem` and `<name>.key`."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._name = _subject(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.cert = directory / f"{name}.pem"
        builder = _builder(self._name, self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self._write(self.cert, builder)

    def sign(
        self, common_name: str, organization: str = "tests", unit: str = "", *, age: timedelta = DAY
    ) -> tuple[Path, Path]:
        """A certificate for this name, good for 127.0.0.1 and localhost; it and its key.

        It is good for two days, of which `age` are over.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        subject = _subject(common_name, organization, unit)
        builder = _builder(subject, self._name, key.public_key(), age).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        stem = f"{common_name}-{organization}-{unit}".replace("/", "_")
        cert, key_file = self._directory / f"{stem}.pem", self._directory / f"{stem}.key"
        self._write(cert, builder)
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return cert, key_file

    def revoke(self, *certs: Path, days: int = 1) -> Path:
        """A list of revoked certificates that is good for so many days; its file."""
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._name)
        builder = builder.last_update(now - 10 * DAY).next_update(now + days * DAY)
        for cert in certs:
            serial = x509.load_pem_x509_certificate(cert.read_bytes()).serial_number
            row = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
            builder = builder.add_revoked_certificate(row.build())
        made = builder.sign(self._key, hashes.SHA256())
        file, new = self._directory / "revoked.pem", self._directory / "revoked.new"
        new.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        new.replace(file)
        return file

    def _write(self, path: Path, builder: x509.CertificateBuilder) -> None:
        certificate = builder.sign(self._key, hashes.SHA256())
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _subject(common_name: str, organization: str = "tests", unit: str = "") -> x509.Name:
    fields = (
        (NameOID.ORGANIZATION_NAME, organization),
        (NameOID.ORGANIZATIONAL_UNIT_NAME, unit),
        (NameOID.COMMON_NAME, common_name),
    )
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in fields if value])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, age: timedelta = DAY
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - age)
        .not_valid_after(now - age + 2 * DAY)
    )
