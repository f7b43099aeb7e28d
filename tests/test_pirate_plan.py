"""Which doors of the Pirates a configuration opens."""

from __future__ import annotations

import msgspec
import pytest

from bstar.errors import ConfigurationError
from bstar.settings import RoleName, Settings
from bstar.settings.fronts import EmqOptions, Fronts, PppOptions
from bstar.settings.relations import node_problems, pair_problems
from bstar.settings.sample import sample_settings
from bstar_broker.fronts.plans import plans_of


def configured(role: RoleName = "primary", **ppp: object) -> Settings:
    settings = sample_settings(role)
    return msgspec.structs.replace(settings, fronts=Fronts(ppp=msgspec.convert(ppp, PppOptions)))


def test_without_an_endpoint_the_front_is_off() -> None:
    assert plans_of(configured()) == []


def test_each_endpoint_opens_its_own_door() -> None:
    [plan] = plans_of(configured(workers="tcp://127.0.0.1:5012"))
    assert [(door.name, door.key) for door in plan.doors] == [("workers", "fronts.ppp.workers")]
    [plan] = plans_of(configured(workers="tcp://127.0.0.1:5012", clients="tcp://127.0.0.1:5011"))
    assert [door.name for door in plan.doors] == ["clients", "workers"]


@pytest.mark.parametrize("service", ["mmi.service", "store.submit", "é" * 128])
def test_a_name_that_no_worker_may_offer_is_refused_at_the_start(service: str) -> None:
    with pytest.raises(ConfigurationError, match=r"fronts\.ppp\.service"):
        plans_of(configured(workers="tcp://127.0.0.1:5012", service=service))


@pytest.mark.parametrize(
    ("key", "value"), [("service", "other"), ("heartbeat_interval_s", 2.0), ("liveness", 5)]
)
def test_both_nodes_of_a_pair_speak_alike(key: str, value: object) -> None:
    problems = pair_problems(configured(), configured("backup", **{key: value}))
    assert [problem for problem in problems if problem.startswith(f"fronts.ppp.{key}: ")]


@pytest.mark.parametrize(
    ("fronts", "key"),
    [
        (Fronts(ppp=PppOptions(service="mmi.service")), "fronts.ppp.service"),
        (Fronts(emq=EmqOptions(default_queue="store.submit")), "fronts.emq.default_queue"),
        (Fronts(emq=EmqOptions(workers="tcp://127.0.0.1:47290")), "fronts.emq.clients"),
        (Fronts(emq=EmqOptions(clients="tcp://127.0.0.1:47291")), "fronts.emq.workers"),
    ],
)
def test_a_check_finds_what_the_start_refuses(fronts: Fronts, key: str) -> None:
    settings = msgspec.structs.replace(sample_settings("primary"), fronts=fronts)
    [problem] = node_problems(settings)
    assert problem.paths == (key,)
