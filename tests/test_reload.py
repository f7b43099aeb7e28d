"""A configuration read again: limits and log take effect, every other change is named as waiting."""

from __future__ import annotations

import msgspec
import pytest

from bstar.errors import ConfigurationError
from bstar.settings import Settings, sample_settings
from bstar.settings.fields import FIELDS
from bstar_broker.core.settings import RELOADABLE, BrokerSettings
from bstar_broker.operate.reload import RELOADED_KEYS, reload


def changed(path: str, value: object) -> Settings:
    base = sample_settings("primary")
    section, _, name = path.rpartition(".")
    if not section:
        return msgspec.structs.replace(base, **{name: value})
    part = msgspec.structs.replace(getattr(base, section), **{name: value})
    return msgspec.structs.replace(base, **{section: part})


@pytest.mark.parametrize("name", RELOADABLE)
def test_a_limit_takes_effect_in_the_running_core(name: str) -> None:
    before, core = sample_settings("primary"), BrokerSettings()
    wanted = getattr(before.limits, name) - 1
    result = reload(before, changed(f"limits.{name}", wanted), core)
    assert (result.applied, result.waiting) == ([f"limits.{name}"], [])
    assert getattr(core, name) == getattr(result.settings.limits, name) == wanted


def test_what_needs_a_restart_stays_as_it_was() -> None:
    before = sample_settings("primary")
    result = reload(before, changed("pair", "other"), BrokerSettings())
    assert (result.applied, result.waiting) == ([], ["pair"])
    assert result.settings == before


def test_a_limit_that_does_not_fit_what_needs_a_restart_changes_nothing() -> None:
    before, core = sample_settings("primary"), BrokerSettings()
    limits = {"message_bytes_max": 1 << 20, "queue_bytes_max": 2 << 20}
    wanted = msgspec.structs.replace(before, limits=msgspec.structs.replace(before.limits, **limits))
    kept = core.queue_bytes_max
    with pytest.raises(ConfigurationError, match=r"limits\.queue_bytes_max beside keys that take a restart"):
        reload(before, wanted, core)
    assert core.queue_bytes_max == kept


def test_the_same_configuration_changes_nothing() -> None:
    result = reload(sample_settings("primary"), sample_settings("primary"), BrokerSettings())
    assert (result.applied, result.waiting) == ([], [])


def test_every_key_that_is_reloaded_exists() -> None:
    assert FIELDS.keys() >= RELOADED_KEYS
