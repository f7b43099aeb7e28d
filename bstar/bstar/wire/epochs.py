"""How far a claim about an epoch is believed. Node, peer and worker use these bounds.

An epoch is a claim until a node has activated above it. An honest claim is near: a pair that activates once a
second needs 136 years for 2^32 epochs. A claim that is far away comes from a liar or from a damaged file.
No process follows it upwards, and a peer that remembers one follows the active node back down.

The numbers last (docs/adr/0013). A worker's claims raise a node's epoch by ``EPOCH_STEP_MAX`` in
``EPOCH_REFILL_S`` at most, that is 2^26 a second: 2^62 / 2^26 s = 2^36 s, or 2,177 years. State messages
raise it by ``EPOCH_FAR`` in that time, 2^30 a second: 2^62 / 2^30 s = 2^32 s, or 136 years.
"""

# No node takes, keeps or believes an epoch above this one. The header of a message has 64 bits for it.
EPOCH_MAX = 2**62

# A node follows a worker's epoch up to this far above the epochs that nodes have taken. Beyond that the
# worker follows its node. One bound for both, so that in any case one of them moves.
EPOCH_STEP_MAX = 2**32

# How far the peer's own epoch is followed. Above EPOCH_STEP_MAX, because the peer may have followed a worker.
EPOCH_FAR = 2**36

# Either bound, once used up, is whole again after this time. It is also the longest that a worker and its
# node can differ, and only if a liar has used up the bound just before.
EPOCH_REFILL_S = 64.0
