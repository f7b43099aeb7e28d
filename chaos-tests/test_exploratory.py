"""Every kind of fault against a whole pair of real processes."""

from __future__ import annotations

from pathlib import Path

from chaos.cluster import Cluster


def test_a_killed_active_node_is_followed_by_its_peer(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start()
        cluster.add_worker()
        client = cluster.add_client()
        client.wait_for_answers(50)
        active = cluster.active()
        active.kill()
        client.wait_for_answers(50)
        assert cluster.active() is not active
        active.restart()
        active.wait_for_state("PASSIVE")
        cluster.finish_traffic()
