"""Bounds and timing of a client's session, in either dialect."""

import msgspec


class SessionSettings(msgspec.Struct, frozen=True):
    """``outstanding_max``: requests without a reply; each costs its body and a few hundred bytes.
    ``partials_max``: PARTIALs kept for one reply of ``request``.

    Native: ``ping_interval_s`` and ``silence_limit_s``; None: the nodes tell their timing. Plain MDP/0.2:
    ``attempt_timeout_s``, the silence after which an attempt is given up; each PARTIAL restarts it
    (MDP2-R-01). ``settle_delay_s``: the pause before a request goes to the next node, at least the pair's
    failover timeout.

    Without a broker: these two, and ``attempts_max``, the attempts of one call (None: as many as fit before
    its deadline). ``is_each_once``: no server has two of them.
    """

    outstanding_max: int = 100_000
    partials_max: int = 10_000
    ping_interval_s: float | None = None
    silence_limit_s: float | None = None
    attempt_timeout_s: float = 2.5
    settle_delay_s: float = 2.0
    attempts_max: int | None = None
    is_each_once: bool = False
