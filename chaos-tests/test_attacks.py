"""The pair of docs/security.md, on hosts of its own, and each attack of its threat model, in their order."""

from __future__ import annotations

import sys
from pathlib import Path

from chaos.attacks import ATTACKS
from chaos.keyed import keyed_pair
from chaos.needs import CHAOS
from chaos.network import require_namespaces

pytestmark = CHAOS


def test_no_attack_of_the_threat_model_gets_anywhere(tmp_path: Path) -> None:
    require_namespaces()
    with keyed_pair(tmp_path) as target:
        for attack in ATTACKS:
            sys.stdout.write(f"{attack.who}, {attack.tries_to}: ")
            sys.stdout.write(f"{attack.make(target)}\n")
