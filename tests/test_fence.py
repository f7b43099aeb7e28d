"""Which epoch a worker obeys."""

import pytest

from bstar.wire.epochs import EPOCH_STEP_MAX
from bstar_client.core.worker.fence import Fence, Moved

EXPIRY_S = 1.0


def test_the_highest_epoch_in_which_a_node_serves_is_obeyed() -> None:
    fence = Fence()
    assert [fence.hear(epoch, EXPIRY_S, 0.0) for epoch in (1, 4, 3, 4)] == [
        Moved.UP,
        Moved.UP,
        Moved.NOT,
        Moved.NOT,
    ]
    assert fence.epoch == 4


def test_a_node_that_can_activate_above_the_fence_is_never_followed_below_it() -> None:
    """However long nobody has served in the higher epoch: the node will, as soon as it is told."""
    fence = Fence()
    fence.hear(1 + EPOCH_STEP_MAX, EXPIRY_S, 0.0)
    assert fence.hear(1, EXPIRY_S, 1e6) is Moved.NOT


@pytest.mark.requirement("BSN-W-14")
def test_a_node_that_cannot_reach_the_fence_is_followed_when_nobody_has_served_there_for_an_expiry() -> None:
    fence = Fence()
    far = 2 + EPOCH_STEP_MAX
    fence.hear(far, EXPIRY_S, 0.0)
    assert fence.hear(1, EXPIRY_S, 0.9) is Moved.NOT
    fence.hear(far, EXPIRY_S, 0.9)  # its node is still there, so the other one is superseded
    assert fence.hear(1, EXPIRY_S, 1.8) is Moved.NOT
    assert fence.hear(1, EXPIRY_S, 1.9) is Moved.DOWN
    assert fence.epoch == 1
    assert fence.hear(far, EXPIRY_S, 1.9) is Moved.UP
