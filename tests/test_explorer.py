"""Every state of the Binary Star: small configurations in full, the abstraction, scripts, and broken rules.

``make sim EXPLORE=all`` visits the standard configurations. Here are those that take seconds, and what
makes their result worth something: that two situations of one form have the same future, that what is found
happens to machines that live through it as well, and that a machine without one of its rules is caught.
"""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from bstar.star import Event, Output, PersistEpoch, StarMachine, StarSettings
from bstar.star.epochs import Epochs
from bstar.star.failure_detector import Detector
from bstar.wire.peer import PeerState
from explorer.__main__ import main
from explorer.canonical import canonical
from explorer.configurations import CONFIGURATIONS, configuration_of
from explorer.memory import FreeDetector, LiveMachines, Vessels
from explorer.model import Configuration, Finding, Model
from explorer.scripts import FOLDER, act_out, read, write
from explorer.search import explore

QUICK = configuration_of("quick")
SCRIPTS = sorted(FOLDER.glob("*.txt"))


# --- all that is reachable ----------------------------------------------------------------------------------


@pytest.mark.storm
@pytest.mark.parametrize(
    ("name", "states_min"),
    [
        ("calm", 50),
        ("slow", 1_000),
        ("slow-3", 500),
        ("one-way", 2_000),
        ("quick", 2_000),
        ("cut-off", 2_000),
        ("adaptive", 1_000),
    ],
)
def test_every_state_is_visited_and_none_breaks_a_promise(name: str, states_min: int) -> None:
    outcome = explore(configuration_of(name))
    print(f"{name}: {outcome.states} states, {outcome.transitions} transitions")

    assert outcome.violations == []
    assert outcome.is_exhausted
    assert outcome.states > states_min, "a configuration in which nothing happens proves nothing"
    assert outcome.missing == frozenset()


def test_a_bound_on_states_is_not_taken_for_the_end() -> None:
    outcome = explore(QUICK, states_max=100)

    assert outcome.states == 100
    assert not outcome.is_exhausted


# --- one form, one future -----------------------------------------------------------------------------------


@pytest.mark.storm
@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda configuration: configuration.name)
def test_situations_of_one_form_have_next_situations_of_one_form(configuration: Configuration) -> None:
    """Walks of machines that live on, with epochs, numbers and tokens that grow, beside their forms."""
    rng = random.Random(configuration.name)
    timeout_s, timeout_max_s = float(configuration.timeout), float(configuration.timeout_max)
    vessels = Vessels(timeout_s, timeout_max_s=timeout_max_s)
    beside = Model(configuration, vessels)
    compared = 0
    for _ in range(6):
        live = Model(configuration, LiveMachines(timeout_s, timeout_max_s=timeout_max_s))
        lived = live.beginning()
        for _ in range(60):
            form = canonical(lived, configuration)
            actions = list(live.actions(lived))
            assert list(beside.actions(form)) == actions
            for action in actions:
                one = canonical(beside.next(lived, action), configuration)
                kinds = [kind for kind, _ in beside.findings]
                other = canonical(beside.next(form, action), configuration)
                assert one == other, action
                assert kinds == [kind for kind, _ in beside.findings]
                compared += 1
            action = rng.choice(actions)
            lived = live.next(lived, action)
            # A memory that was written down and read again does what the machine does.
            assert canonical(beside.next(form, action), configuration) == canonical(lived, configuration)
    assert compared > 500


def test_a_field_that_the_explorer_does_not_know_is_an_error() -> None:
    class Forgetting(StarMachine):
        def __init__(self, *arguments: object, **fields: object) -> None:
            super().__init__(*arguments, **fields)  # type: ignore[arg-type]
            self.new_fact = False

    with pytest.raises(AssertionError, match="new_fact"):
        Vessels(2.0, Forgetting)


# --- scripts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_happens_to_machines_that_live_through_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    configuration, finding, steps = read(text)
    replay = act_out(configuration, steps)

    assert finding in replay.findings
    assert text.endswith("\n" + replay.text)


def test_what_a_pair_cannot_prevent_is_written_down() -> None:
    found = {read(path.read_text(encoding="utf-8"))[1] for path in SCRIPTS}

    assert found >= {finding for configuration in CONFIGURATIONS for finding in configuration.expected}


# --- broken rules -------------------------------------------------------------------------------------------


class NoStallRule(StarMachine):
    """Goes on serving after a stall."""

    def _notice_absence(self, now: float) -> list[Output]:
        return []


class NoSilenceGuard(StarMachine):
    """Takes every request for a vote."""

    def _on_vote(self, now: float) -> list[Output]:
        outputs = self._notice_absence(now)
        facts = msgspec.structs.replace(self._facts(now), peer_silent=True)
        return outputs + self._fire(Event.CLIENT_REQUEST, facts, now)


class ImpatientRelease(StarMachine):
    """Gives the role up and does not wait for the peer to take it."""

    def _on_handover(self, now: float) -> list[Output]:
        outputs = super()._on_handover(now)
        if self.is_released:
            self.peer.expires_at = now
        return outputs


class AnyParity(Epochs):
    def take(self) -> PersistEpoch:
        self.own = self.seen = self.seen + 1
        return PersistEpoch(self.own)


class NoParity(StarMachine):
    """Takes the next epoch, whoever's it is."""

    def __init__(self, settings: StarSettings, *, node: str, epoch: int, now: float) -> None:
        super().__init__(settings, node=node, epoch=epoch, now=now)
        self.epochs = AnyParity(settings.role, epoch)


class Shrinks(FreeDetector):
    """Takes the peer for dead by a smaller need that the peer has not acknowledged."""

    @property
    def _highest_ms(self) -> int:
        return self.need_ms


class Grows(FreeDetector):
    """Serves on by a greater need that the peer has not acknowledged."""

    @property
    def _lowest_ms(self) -> int:
        return self.need_ms


class Trusts(FreeDetector):
    """Believes that whatever run of the peer speaks lives."""

    def hear(self, message: PeerState, node: str, now: float, *, is_new_run: bool) -> None:
        super().hear(message, node, now, is_new_run=False)


def with_detector(detector_class: type[Detector]) -> type[StarMachine]:
    class Broken(StarMachine):
        def __init__(self, settings: StarSettings, *, node: str, epoch: int, now: float) -> None:
            super().__init__(settings, node=node, epoch=epoch, now=now)
            self.peer.detector = detector_class(settings, now)
            self.peer.pace = self.peer._pace()

    return Broken


@pytest.mark.storm
@pytest.mark.parametrize(
    ("name", "machine_class", "finding"),
    [
        ("quick", NoStallRule, Finding.SERVES_ON),
        ("quick", NoSilenceGuard, Finding.TWO_SERVE),
        ("quick", ImpatientRelease, Finding.TWO_SERVE),
        ("quick", NoParity, Finding.EPOCH_SHARED),
        ("adaptive", with_detector(Shrinks), Finding.LATE_TO_YIELD),
        ("adaptive", with_detector(Grows), Finding.LATE_TO_YIELD),
        ("adaptive-crash", with_detector(Trusts), Finding.LATE_TO_YIELD),
    ],
)
def test_a_machine_without_one_of_its_rules_is_caught(
    name: str, machine_class: type[StarMachine], finding: Finding
) -> None:
    configuration = configuration_of(name)
    outcome = explore(configuration, machine_class=machine_class)

    [violation] = [violation for violation in outcome.violations if violation.finding is finding]
    # The script of it is one that the broken machine lives through.
    _, found, steps = read(write(configuration, violation, machine_class))
    assert found is finding
    assert finding in act_out(configuration, steps, machine_class).findings


# --- the command --------------------------------------------------------------------------------------------


@pytest.mark.loopback
def test_the_command_explores_what_it_is_told_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calm"]) == 0
    assert "calm" in capsys.readouterr().out


@pytest.mark.loopback
def test_the_command_does_not_call_a_search_that_it_gave_up_a_success() -> None:
    assert main(["quick", "--states", "50"]) == 1


def test_the_command_lists_its_configurations(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [configuration.name for configuration in CONFIGURATIONS]
