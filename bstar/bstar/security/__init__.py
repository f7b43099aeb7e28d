"""Who may connect, and as what: CURVE keys, the principals they belong to, and the ZAP handler that asks.

A node with a key takes CURVE connections only (25/ZMTP-CURVE, 26/CURVEZMQ, 27/ZAP). Each one proves that it
has the secret half of a public key. The node's ``Principals`` say whose key it is and what its owner may do.
Applications need ``Security`` alone:

    security = Security("keys/shop.key", servers=["keys/primary.pub", "keys/backup.pub"])
    client = HAClient(endpoints, security=security)
"""

from bstar.security.keys import KeyPair, new_key, read_key, read_public_key
from bstar.security.principals import Principal, Principals, Quota
from bstar.security.trust import Security, ServerSecurity

__all__ = [
    "KeyPair",
    "Principal",
    "Principals",
    "Quota",
    "Security",
    "ServerSecurity",
    "new_key",
    "read_key",
    "read_public_key",
]
