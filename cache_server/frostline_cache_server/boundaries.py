"""The identities of cached boundaries: which are in use, what each was promised, and which may be removed. No clock, no Redis."""

from dataclasses import dataclass, field

from frostline_cache_server.admission import Admission, admit
from frostline_contract.cache_identity import CacheIdentity

FIRST_LEASE_SECONDS = 60.0
"""How long a newly announced identity is kept without a lease."""

FORGET_SECONDS = 900.0
"""How long an unused identity is remembered, and its values removed again: late writes may still arrive under it."""

PRESSURE_SHARE = 0.75
"""Above this share of the usable memory, values without a lease are removed. Below it they stay: another run may want them."""


@dataclass
class Known:
    """One identity and its leases, by holder. Times are seconds of one monotonic clock."""

    identity: CacheIdentity
    samples: int = 0
    value_bytes: int = 0
    admission: Admission = field(default_factory=lambda: Admission(0.0, 0, "not asked for yet"))
    leases: dict[str, float] = field(default_factory=dict)
    kept_until: float = 0.0
    succeeded_by: bytes | None = None

    def in_use(self, now: float) -> bool:
        """Whether the identity has a lease, or is kept without one, beyond `now`."""
        return now < max([self.kept_until, *self.leases.values()])

    def last_use(self) -> float:
        """When its last lease, or its time without one, ends or has ended."""
        return max([self.kept_until, *self.leases.values()])


class Boundaries:
    """All identities that calls have named since this server started.

    Args:
        shared: whether several runs use the cache, at once or one after the other. Then a boundary that one run has left keeps
            its values until memory is short, since another run may begin there; while it is leased, its values count as promised.
    """

    def __init__(self, shared: bool = False) -> None:
        self._shared = shared
        self._known: dict[bytes, Known] = {}

    def known(self, identity: CacheIdentity) -> Known | None:
        """An identity's entry; None before the first call that names it."""
        return self._known.get(identity.namespace())

    def admit(self, identity: CacheIdentity, samples: int, value_bytes: int, usable: int, now: float) -> Admission:
        """Promise an identity a share of the memory. A later call may raise the share, never lower it.

        Args:
            identity: of the boundary.
            samples: (sample, variant) pairs that may be stored.
            value_bytes: one value with its headers.
            usable: bytes that all values may take.
            now: seconds by a monotonic clock.
        """
        entry = self._entry(identity, now)
        entry.samples, entry.value_bytes = samples, value_bytes
        elsewhere = self._promised_elsewhere(identity.namespace(), now)
        entry.admission = admit(usable, elsewhere, samples, value_bytes, entry.admission.fraction)
        return entry.admission

    def advance(self, old: CacheIdentity, new: CacheIdentity, usable: int, now: float) -> tuple[bool, Admission]:
        """Note that a run's boundary has moved. The old boundary's promise passes to the new one, whose values replace the old.

        Idempotent.

        Args:
            old, new: identities of the two boundaries.
            usable, now: as in `admit`.

        Returns:
            Whether the old boundary was known, and the admission of the new one.
        """
        before = self.known(old)
        entry = self._entry(new, now)
        # A run that rolls back returns to a boundary that it had left: that boundary has no successor any more.
        entry.succeeded_by = None
        if before is None:
            return False, entry.admission
        before.succeeded_by = new.namespace()
        if not entry.samples:
            self.admit(new, before.samples, before.value_bytes, usable, now)
        return True, entry.admission

    def lease(self, identity: CacheIdentity, holder: str, seconds: float, now: float) -> None:
        """Set a holder's lease of an identity.

        Args:
            identity: of the boundary.
            holder: who uses the boundary.
            seconds: until the lease ends; 0: it ends now.
            now: seconds by a monotonic clock.
        """
        entry = self._entry(identity, now)
        entry.leases[holder] = now + seconds
        entry.kept_until = 0.0

    def namespaces(self) -> set[bytes]:
        """Namespaces of all known identities. Keys of other namespaces may be removed when memory is short."""
        return set(self._known)

    def sweepable(self, now: float, used: int, usable: int) -> dict[bytes, str]:
        """Namespaces to remove from Redis, with the reasons, least recently used first.

        A boundary that its run has left is removed as soon as it has no lease, unless the cache is shared. Any other boundary
        without a lease is removed when memory is short.
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
        """Forget identities that have been unused for FORGET_SECONDS. Any values of theirs in Redis are unknown from then on."""
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
