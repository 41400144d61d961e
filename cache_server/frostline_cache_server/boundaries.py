"""Which identities are in use, what each was promised, and which may be swept. Pure state: no clock, no Redis."""

from dataclasses import dataclass, field

from frostline_cache_server.admission import Admission, admit
from frostline_contract.cache_identity import CacheIdentity

FIRST_LEASE_SECONDS = 60.0
"""An identity that was just announced is kept this long without a lease."""

FORGET_SECONDS = 900.0
"""A retired identity is remembered, and swept again, this long: late writes may still land under it."""

PRESSURE_SHARE = 0.75
"""Above this share of the usable memory, values that nobody leases are removed; below, another run may still want them."""


@dataclass
class Known:
    """One identity. Moments are seconds of one monotonic clock."""

    identity: CacheIdentity
    samples: int = 0
    value_bytes: int = 0
    admission: Admission = field(default_factory=lambda: Admission(0.0, 0, "not asked for yet"))
    leases: dict[str, float] = field(default_factory=dict)
    kept_until: float = 0.0
    succeeded_by: bytes | None = None

    def in_use(self, now: float) -> bool:
        """Whether a lease still holds, or it was promised to be kept until a later moment than `now`."""
        return now < max([self.kept_until, *self.leases.values()])

    def last_use(self) -> float:
        """When its last lease or promise ends, or has ended."""
        return max([self.kept_until, *self.leases.values()])


class Boundaries:
    """All identities that this server has heard of since it started.

    shared: several runs use the cache, one after the other too. Another run may begin at a boundary that one has left, so its
    values stay until the memory is wanted, and count as promised while they are leased.
    """

    def __init__(self, shared: bool = False) -> None:
        self._shared = shared
        self._known: dict[bytes, Known] = {}

    def known(self, identity: CacheIdentity) -> Known | None:
        """What is known of an identity; None before the first call that names it."""
        return self._known.get(identity.namespace())

    def admit(self, identity: CacheIdentity, samples: int, value_bytes: int, usable: int, now: float) -> Admission:
        """Promise an identity its share; asked again it may grow, never shrink."""
        entry = self._entry(identity, now)
        entry.samples, entry.value_bytes = samples, value_bytes
        elsewhere = self._promised_elsewhere(identity.namespace(), now)
        entry.admission = admit(usable, elsewhere, samples, value_bytes, entry.admission.fraction)
        return entry.admission

    def advance(self, old: CacheIdentity, new: CacheIdentity, usable: int, now: float) -> tuple[bool, Admission]:
        """The boundary moved. The old one's promise passes to the new one: samples are dropped there as they arrive here.

        Returns whether the old one was known, and the new one's admission. Said twice it changes nothing.
        """
        before = self.known(old)
        entry = self._entry(new, now)
        # A run that rolls back returns to a boundary that had been left: it is in use again, and nothing succeeds it.
        entry.succeeded_by = None
        if before is None:
            return False, entry.admission
        before.succeeded_by = new.namespace()
        if not entry.samples:
            self.admit(new, before.samples, before.value_bytes, usable, now)
        return True, entry.admission

    def lease(self, identity: CacheIdentity, holder: str, seconds: float, now: float) -> None:
        """`holder` uses the identity for `seconds` more; 0 gives it back."""
        entry = self._entry(identity, now)
        entry.leases[holder] = now + seconds
        entry.kept_until = 0.0

    def namespaces(self) -> set[bytes]:
        """Namespaces of all known identities: keys of others may be swept."""
        return set(self._known)

    def sweepable(self, now: float, used: int, usable: int) -> dict[bytes, str]:
        """Namespaces to remove from Redis, each with the reason.

        What was left behind by a moved boundary goes as soon as nobody leases it, unless the cache is shared. What merely
        nobody leases goes when the memory is wanted, least recently leased first in the answer.
        """
        idle = sorted((entry for entry in self._known.values() if not entry.in_use(now)), key=Known.last_use)
        pressed = (usable > 0 and used > PRESSURE_SHARE * usable) or self._short(now)
        reasons = {}
        for entry in idle:
            if entry.succeeded_by is not None and not self._shared:
                reasons[entry.identity.namespace()] = f"boundary {entry.identity.boundary} was left and its leases ran out"
            elif pressed:
                reasons[entry.identity.namespace()] = f"boundary {entry.identity.boundary} has no lease and memory is wanted"
        return reasons

    def forget_old(self, now: float) -> None:
        """Drop what nobody has leased for FORGET_SECONDS from the books; what is left of it in Redis is then unknown."""
        self._known = {key: entry for key, entry in self._known.items() if now < entry.last_use() + FORGET_SECONDS}

    def _short(self, now: float) -> bool:
        return any(entry.samples and entry.admission.fraction < 1.0 for entry in self._known.values() if entry.in_use(now))

    def _entry(self, identity: CacheIdentity, now: float) -> Known:
        entry = self._known.setdefault(identity.namespace(), Known(identity))
        entry.kept_until = max(entry.kept_until, now + FIRST_LEASE_SECONDS) if not entry.leases else entry.kept_until
        return entry

    def _promised_elsewhere(self, namespace: bytes, now: float) -> int:
        return sum(
            entry.admission.promised_bytes
            for key, entry in self._known.items()
            if key != namespace and entry.in_use(now) and (entry.succeeded_by is None or self._shared)
        )
