"""Tags of cached values: the last bytes of a header, by which a reader checks that a value is whole and who wrote it.

Without them anybody who may write to a Redis could choose the numbers that a run trains on. So users of a cache sign values with
a secret that they share: AES-GCM's tag over key, header and payload (GMAC), with a random nonce of 96 bits. GMAC costs a fifth of
HMAC-SHA256 and a tenth of BLAKE2b, and needs no copy of the payload.
"""

import hashlib
import hmac
import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import xxhash

from frostline_contract.run_directory import RunDirectory

if TYPE_CHECKING:
    from frostline_contract.job.cluster import CacheSection

NONCE_BYTES, TAG_BYTES = 12, 16
SECRET_VARIABLE = "FROSTLINE_CACHE_SECRET"
"""File in the run's directory, readable by its user alone, with the secret of a run whose environment gives none."""
SECRET_CHARACTERS_MIN = 16

Buffer = bytes | bytearray | memoryview


class Tags(Protocol):
    """Makes and checks the tags (NONCE_BYTES + TAG_BYTES) at the end of headers. `fault` is the word for a tag that is wrong."""

    fault: str

    def make(self, key: bytes, head: bytes, payload: Buffer) -> bytes:
        """The NONCE_BYTES + TAG_BYTES for a value.

        Args:
            key: the key under which the value is stored.
            head: the value's header without the tag.
            payload: the coded activation.
        """

    def holds(self, tag: bytes, key: bytes, head: bytes, payload: Buffer) -> bool:
        """Whether `tag` is that of this key, header and payload; a value whose tag does not hold is a miss."""


class Checksums:
    """Tags that are XXH3-128 checksums seeded by the key. Anybody can make them, so they protect against faults only.

    They find torn values at memory speed, and whole values of another sample: keys of neighbouring samples differ in one bit, so
    a request that was damaged on its way may name a key that exists.
    """

    fault = "checksum differs"

    def make(self, key: bytes, head: bytes, payload: Buffer) -> bytes:
        """A nonce of zeros and the checksum; equal values of one key have equal tags."""
        digest = xxhash.xxh3_128(head, xxhash.xxh3_64_intdigest(key))
        digest.update(payload)
        return bytes(NONCE_BYTES) + digest.digest()

    def holds(self, tag: bytes, key: bytes, head: bytes, payload: Buffer) -> bool:
        """Whether the checksum is that of this key, header and payload."""
        return tag == self.make(key, head, payload)


class Signatures:
    """Tags that are GMACs under a key derived from the secret: only holders of the secret can make them."""

    fault = "signature differs: torn, foreign, or written by somebody without this run's cache secret"

    def __init__(self, secret: str) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # services that only know keys need no cryptography

        self._cipher = AESGCM(hashlib.blake2b(secret.encode(), digest_size=32, person=b"frostline cache").digest())

    def make(self, key: bytes, head: bytes, payload: Buffer) -> bytes:
        """A random nonce and the GMAC under it: no two calls make the same tag."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._tag(nonce, key, head, payload)

    def holds(self, tag: bytes, key: bytes, head: bytes, payload: Buffer) -> bool:
        """Whether the GMAC is that of this key, header and payload, compared in constant time."""
        nonce = tag[:NONCE_BYTES]
        return hmac.compare_digest(tag[NONCE_BYTES:], self._tag(nonce, key, head, payload))

    def _tag(self, nonce: bytes, key: bytes, head: bytes, payload: Buffer) -> bytes:
        # Key and header are encrypted and the payload is authenticated only, so that it is not copied; the ciphertext is dropped.
        return self._cipher.encrypt(nonce, key + head, payload)[-TAG_BYTES:]


def tags_of(secret: str | None) -> Tags:
    """The tags of a cache: signatures where its users share `secret`, checksums where they have none and trust each other."""
    return Signatures(secret) if secret else Checksums()


def read_secret(run_dir: Path | None) -> str | None:
    """The cache's secret: from the environment, else from the run's file, else None. Raises OSError, or ValueError for one that
    is too short."""
    given = os.environ.get(SECRET_VARIABLE)
    file = RunDirectory(run_dir).cache_secret if run_dir is not None else None
    if given is not None:
        secret, place = given.strip(), SECRET_VARIABLE
    elif file is not None and file.exists():
        secret, place = file.read_text(encoding="utf-8").strip(), str(file)
    else:
        return None
    if len(secret) < SECRET_CHARACTERS_MIN:
        raise ValueError(
            f"{place} holds {len(secret)} characters: the cache's secret needs at least {SECRET_CHARACTERS_MIN}; "
            "make one with `openssl rand -hex 32`"
        )
    return secret


def unsigned_refusal(section: "CacheSection", run_dir: Path | None = None) -> str | None:
    """Why the cache servers that a job names are refused, with the remedy; None where they may be used.

    Values on servers that others can write to need signatures. The run's own Redis needs none: nobody else has its password.

    Args:
        section: the job's.
        run_dir: the folder in which a secret may lie; None: only the environment can give one.

    Raises:
        ValueError: the secret is too short.
        OSError: the secret's file cannot be read.
    """
    if not section.addresses or section.trusted or read_secret(run_dir) is not None:
        return None
    return (
        f"cache.addresses is {list(section.addresses)}: others may write there, and no secret signs this run's values; "
        f"set {SECRET_VARIABLE} to a secret that all who share this cache have (on a cluster: kubernetes.cache_secret), "
        "or cache.trusted: true where everybody who can write there may decide this run's results"
    )
