"""The figures as a Markdown table, with what was aimed at and whether it was met. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from failover.figures import Losses, percentile
from failover.lanes import Campaign
from failover.overload import Overload
from pages.markdown import wrapped

BEGIN = "<!-- begin of the generated part: make bench-failover -->"
END = "<!-- end of the generated part -->"

# p99 of the outage in seconds. Where there is none, a timeout of the profile decides and is what is seen.
TARGETS: dict[tuple[str, str], float] = {
    ("lan", "kill"): 0.3,
    ("lan", "stop"): 0.05,
    ("lan", "freeze"): 0.5,
    ("lan", "cut"): 0.5,
    ("auto", "kill"): 0.3,
    ("auto", "stop"): 0.05,
    ("auto", "freeze"): 0.5,
    ("auto", "cut"): 0.5,
    ("guide", "kill"): 0.5,
}
COLUMNS = (
    *(
        "profile",
        "fault of the active node",
        "trials",
        "p50",
        "p99",
        "max",
        "p99 aimed at",
        "calls",
        "failed",
    ),
    *("lost", "executed again"),
)
WORDS = {
    "none": "no fault",
    "kill": "kill -9",
    "stop": "planned stop (SIGTERM)",
    "freeze": "frozen (SIGSTOP)",
    "cut": "network cut",
}


def table(
    campaign: Campaign,
    overload: Overload | None,
    *,
    profiles: Sequence[str],
    faults: Sequence[str],
    circumstances: Sequence[str],
    troubles: Sequence[str],
) -> str:
    """Everything between the markers."""
    lines = [*(f"- {line}" for line in circumstances), ""]
    lines += [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    lines += [_row(campaign, profile, fault) for profile in profiles for fault in faults]
    lines += ["", *_overload_lines(overload)]
    missed = [*misses(campaign, overload, profiles, faults), *troubles]
    lines += ["", "Every target was met." if not missed else "**Missed:**"]
    lines += [f"- {text}" for text in missed]
    return wrapped("\n".join(lines))


def _row(campaign: Campaign, profile: str, fault: str) -> str:
    name = f"| {profile} | {WORDS[fault]} |"
    if fault in campaign.missing:
        return f"{name} **NOT MEASURED: {campaign.missing[fault]}** |||||||||"
    outages = _outages(campaign, profile, fault)
    if not outages:
        return f"{name} **no trial came to its end** |||||||||"
    p50, p99 = percentile(outages, 50), percentile(outages, 99)
    target = TARGETS.get((profile, fault))
    losses = campaign.losses.get((profile, fault), Losses())
    figures = (
        str(len(outages)),
        *(_ms(value) for value in (p50, p99, max(outages))),
        f"< {_ms(target)}" if target is not None else "–",
        f"{losses.calls:,}",
        *(f"{count:,}" for count in (losses.failed, losses.lost, losses.executed_again)),
    )
    return f"{name} {' | '.join(figures)} |"


def _overload_lines(overload: Overload | None) -> list[str]:
    if overload is None:
        return ["False failovers under overload: not measured in this run."]
    text = (
        f"Overload (`{overload.profile}`, {overload.busy} busy processes, {_large(overload)}"
        "50 ms jitter on the state link, "
        f"{overload.seconds:.0f} s, load average {overload.load_average:.1f}): "
        f"**{overload.role_changes} false failovers**. Longest loop lag {_ms(overload.lag_max_s)}, "
        f"{overload.stalls} stalls; {overload.calls:,} calls, {overload.failed:,} failed, "
        f"{overload.lost:,} lost, longest time without a reply {_ms(overload.longest_gap_s)}; longest "
        f"failover timeout {overload.timeout_max_s:g} s."
    )
    return [text]


def _large(overload: Overload) -> str:
    octets = overload.padding_bytes
    return f"requests of {octets / 2**20:g} MiB, " if octets else ""


def misses(
    campaign: Campaign, overload: Overload | None, profiles: Sequence[str], faults: Sequence[str]
) -> Iterator[str]:
    """What was aimed at and not reached, a sentence each."""
    for profile in profiles:
        for fault in faults:
            place = f"{profile}, {WORDS[fault]}"
            if fault in campaign.missing:
                yield f"{place}: not measured: {campaign.missing[fault]}"
                continue
            outages = _outages(campaign, profile, fault)
            target = TARGETS.get((profile, fault))
            if outages and target is not None and percentile(outages, 99) >= target:
                yield f"{place}: p99 is {_ms(percentile(outages, 99))}, aimed at less than {_ms(target)}"
            failures = campaign.unrecovered[profile, fault]
            if failures:
                yield f"{place}: {failures} trial(s) did not come to their end"
            losses = campaign.losses.get((profile, fault), Losses())
            if losses.failed or losses.lost:
                yield f"{place}: {losses.failed} calls failed, {losses.lost} were lost; aimed at none"
    if overload is not None:
        if overload.role_changes:
            yield f"overload: {overload.role_changes} changes of state; aimed at none"
        if overload.failed or overload.lost:
            yield f"overload: {overload.failed} calls failed, {overload.lost} were lost; aimed at none"


def _outages(campaign: Campaign, profile: str, fault: str) -> list[float]:
    return [trial.outage_s for trial in campaign.trials if (trial.profile, trial.fault) == (profile, fault)]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"


def replace_between_markers(page: str, text: str) -> str:
    """The page with this text between its markers. ValueError if it has none."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no part between {BEGIN} and {END}")
    return f"{head}{begin}\n\n{text}\n\n{end}{tail}"
