"""The client's session in plain MDP/0.2 (18/MDP), to any broker: one request at a time, in order.

The order is that of the guide's Binary Star client: ``AttemptSession`` has it. BST-C-01..04, MDP2-C-01..04.
"""

from bstar.wire.mdp import MDP02, ClientReply
from bstar_client.core.plain.attempt_session import AttemptSession


class _Mdp02:
    """MDP/0.2 names the service in each reply. A broker sends one FINAL, so its socket serves on."""

    is_fresh = False

    def encode_request(self, service: bytes, body: list[bytes]) -> list[bytes]:
        return MDP02.encode_request(service, body)

    def decode_for_client(self, frames: list[bytes]) -> ClientReply:
        return MDP02.decode_for_client(frames)


class Mdp02Session(AttemptSession):
    """One MDP/0.2 client. See ``ClientCore``."""

    codec = _Mdp02()
