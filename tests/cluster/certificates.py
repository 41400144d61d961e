"""Certificates of the test cluster: one authority, and its certificates for servers on loopback addresses."""

import datetime
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PEM, PLAIN = serialization.Encoding.PEM, serialization.NoEncryption()
LIFE = datetime.timedelta(days=2)


@dataclass(frozen=True)
class Authority:
    """Signs server certificates. certificate: the one that clients trust."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @staticmethod
    def new() -> "Authority":
        key = ec.generate_private_key(ec.SECP256R1())
        draft = _draft("frostline-test-authority", "frostline-test-authority", key.public_key())
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        draft = draft.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        draft = draft.add_extension(usage, critical=True)
        draft = draft.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        return Authority(draft.sign(key, hashes.SHA256()), key)

    def write(self, path: Path) -> None:
        path.write_bytes(self.certificate.public_bytes(PEM))

    def sign_server(self, certificate: Path, key_file: Path, names: Iterable[str], addresses: Iterable[str]) -> None:
        """Write a server's certificate and key, valid for host names and IP addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        draft = _draft("server", "frostline-test-authority", key.public_key())
        valid_for = [x509.DNSName(name) for name in names] + [x509.IPAddress(ipaddress.ip_address(one)) for one in addresses]
        draft = draft.add_extension(x509.SubjectAlternativeName(valid_for), critical=False)
        draft = draft.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        draft = draft.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        draft = draft.add_extension(signer, critical=False)
        certificate.write_bytes(draft.sign(self.key, hashes.SHA256()).public_bytes(PEM))
        _write_key(key, key_file)


def write_signing_pair(private: Path, public: Path) -> None:
    """Write the key that signs service account tokens, and the one that checks them."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    _write_key(key, private)
    public.write_bytes(key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo))


def _write_key(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, path: Path) -> None:
    path.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.TraditionalOpenSSL, PLAIN))
    path.chmod(0o600)


def _draft(subject: str, issuer: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + LIFE)
    )
