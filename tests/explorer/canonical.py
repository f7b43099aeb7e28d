"""One form for all situations that differ in names only.

What machines only compare is renamed: runs and tokens in the order in which they are met, sequence numbers by
rank, epochs by an even shift (their distances decide which epoch comes next, their parity whose it is). What
can no longer decide anything is forgotten: runs of which no word can come any more, tokens that nobody
waits for, ages beyond the bound. That this is sound is tested by walks: two situations of one form have
next situations of one form.
"""

from __future__ import annotations

from explorer.memory import NOBODY, Memory, Waits, Word
from explorer.model import FROZEN, Configuration, Line, Process, Situation

# Situations of which the form is remembered. Most are reached again soon or not at all.
_REMEMBERED_MAX = 500_000
_Words = tuple[tuple[int, Word], ...]
_Seqs = dict[int, dict[int, int]]


class Forms(dict[Situation, Situation]):
    """The form of each situation, remembered: actions that commute lead to one situation by many ways."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__()
        self._configuration = configuration

    def __missing__(self, situation: Situation) -> Situation:
        if len(self) >= _REMEMBERED_MAX:
            self.clear()
        form = self[situation] = canonical(situation, self._configuration)
        return form


def canonical(situation: Situation, configuration: Configuration) -> Situation:
    """The form of this situation."""
    processes, lines, shaky, top, budget = situation
    base = _base(situation, configuration)
    runs = (_runs(situation, 0), _runs(situation, 1))
    seqs = (_seqs(situation, 0), _seqs(situation, 1))
    tokens = (_tokens(situation, 0), _tokens(situation, 1))
    # Older than this no word differs from another.
    age_max = configuration.travel

    def rename(words: _Words, who: int) -> _Words:
        return tuple(
            [
                (
                    min(age_max, age),
                    Word(
                        word.state,
                        word.epoch - base,
                        runs[who][word.run],
                        seqs[who][word.run][word.seq],
                        tokens[who].get(word.asks, 0),
                        tokens[1 - who].get(word.answers, 0),
                        word.is_released,
                        word.is_leaving,
                        word.has_witnesses,
                        word.needs_ms,
                        *_heard_by(word, situation, 1 - who, seqs),
                    ),
                )
                for age, word in words
            ]
        )

    def renamed(who: int) -> Process:
        life, memory, last, frozen, nap_s = processes[who]
        if memory is None:
            return Process(life, None, last - base, 0, 0.0)
        theirs, their_seqs, ours = runs[1 - who], seqs[1 - who], seqs[who].get(memory.run)
        peer_run = memory.peer_run
        answers = tokens[1 - who].get(memory.answers, 0)
        values = list(memory)
        values[_EPOCH] = memory.epoch - base
        values[_EPOCH_SEEN] = memory.epoch_seen - base
        values[_RUN] = 0
        values[_SEQ] = max(ours.values()) if ours else 0
        values[_TOKEN] = max(tokens[who].values(), default=0)
        values[_ASKING] = tokens[who].get(memory.asking, 0)
        values[_ANSWERS] = answers
        values[_ANSWERS_PUBLISHED] = tokens[1 - who].get(memory.answers_published, 0)
        values[_PEER_RUN] = theirs.get(peer_run, NOBODY)
        values[_PEER_SEQ] = their_seqs[peer_run][memory.peer_seq] if peer_run in their_seqs else 0
        values[_PAST_PEERS] = tuple(
            sorted((theirs[run], their_seqs[run][seq]) for run, seq in memory.past_peers if run in their_seqs)
        )
        if memory.streak is not None:
            run, seq, since_ago, rose_ago = memory.streak
            values[_STREAK] = (
                (theirs[run], their_seqs[run][seq], since_ago, rose_ago) if run in their_seqs else None
            )
        if memory.waits is not None:
            values[_WAITS] = _waits(memory.waits, ours or {})
        if life == FROZEN:
            return Process(life, Memory._make(values), last - base, min(frozen, configuration.longest), nap_s)
        return Process(life, Memory._make(values), last - base, 0, 0.0)

    top = top - base if budget.learns else 0

    def line(who: int) -> Line:
        is_cut, is_up, waits, verdict, words, strays = lines[who]
        if words or strays:
            return Line(is_cut, is_up, waits, verdict, rename(words, who), rename(strays, who))
        return lines[who]

    return Situation((renamed(0), renamed(1)), (line(0), line(1)), shaky, top, budget)


_FIELDS = {name: number for number, name in enumerate(Memory._fields)}
_EPOCH, _EPOCH_SEEN = _FIELDS["epoch"], _FIELDS["epoch_seen"]
_RUN, _SEQ, _TOKEN, _ASKING = _FIELDS["run"], _FIELDS["seq"], _FIELDS["token"], _FIELDS["asking"]
_ANSWERS, _ANSWERS_PUBLISHED = _FIELDS["answers"], _FIELDS["answers_published"]
_PEER_RUN, _PEER_SEQ, _PAST_PEERS = _FIELDS["peer_run"], _FIELDS["peer_seq"], _FIELDS["past_peers"]
_STREAK, _WAITS = _FIELDS["streak"], _FIELDS["waits"]


def _base(situation: Situation, configuration: Configuration) -> int:
    """The even number by which all epochs are lowered; none where a restart may begin at zero again."""
    if configuration.memory != "kept":
        return 0
    epochs = []
    for process in situation.processes:
        epochs.append(process.last)
        if process.memory is not None:
            epochs += (process.memory.epoch, process.memory.epoch_seen)
    for _, _, _, _, words, strays in situation.lines:
        epochs += [word.epoch for _, word in words]
        epochs += [word.epoch for _, word in strays]
    if situation.budget.learns:
        epochs.append(situation.top)
    return min(epochs) & ~1


def _runs(situation: Situation, who: int) -> dict[int, int]:
    """New names of the runs of this node that may still be heard or are remembered as the peer."""
    line, own, peer = (
        situation.lines[who],
        situation.processes[who].memory,
        situation.processes[1 - who].memory,
    )
    names: dict[int, int] = {}
    if own is not None:
        names[own.run] = 0
    if line.words or line.strays:
        for _, word in line.words + line.strays:
            names.setdefault(word.run, len(names))
    if peer is not None and peer.peer_run != NOBODY:
        names.setdefault(peer.peer_run, len(names))
    return names


def _seqs(situation: Situation, who: int) -> dict[int, dict[int, int]]:
    """Of each run of this node that may still be heard: the ranks of the numbers that are compared. 0 is no
    number, and 1 is below all of them.
    """
    line, own, peer = (
        situation.lines[who],
        situation.processes[who].memory,
        situation.processes[1 - who].memory,
    )
    numbers: dict[int, set[int]] = {}
    if own is not None:
        numbers[own.run] = _acknowledged(situation, who, own)
    if line.words or line.strays:
        for _, word in line.words + line.strays:
            numbers.setdefault(word.run, set()).add(word.seq)
    if peer is not None:
        if peer.peer_run in numbers:
            numbers[peer.peer_run].add(peer.peer_seq)
        for run, seq in peer.past_peers:
            if run in numbers:
                numbers[run].add(seq)
        if peer.streak is not None and peer.streak[0] in numbers:
            numbers[peer.streak[0]].add(peer.streak[1])
    return {
        run: {seq: rank for rank, seq in enumerate(sorted(present), 2)} for run, present in numbers.items()
    }


def _acknowledged(situation: Situation, who: int, own: Memory) -> set[int]:
    """Numbers of this node's run: those that may still be acknowledged, and what they are compared with."""
    waits, line = own.waits, situation.lines[1 - who]
    if waits is None:
        return set()
    numbers = {own.seq, *(number for number, _ in waits.published[1:])}
    numbers |= {each for each in (waits.doubted, waits.unknown) if each >= waits.acknowledged}
    numbers |= {word.hears_seq for _, word in line.words + line.strays if word.hears == own.run}
    return numbers - {0}


def _heard_by(word: Word, situation: Situation, who: int, seqs: tuple[_Seqs, _Seqs]) -> tuple[int, int]:
    """Whom the word hears, if that is the present run of ``who``, and its last number."""
    own = situation.processes[who].memory
    if own is None or word.hears != own.run or not word.hears_seq:
        return NOBODY, 0
    return 0, seqs[who][own.run][word.hears_seq]


def _waits(waits: Waits, ranks: dict[int, int]) -> Waits:
    """The needs after the first one wait for an acknowledgement of their numbers. Of the last acknowledgement
    counts whether there was one, and which numbers are above it: an earlier one changes nothing.
    """
    first, rest = waits.published[:1], waits.published[1:]
    return waits._replace(
        published=tuple((0, need_ms) for _, need_ms in first)
        + tuple((ranks[number], need_ms) for number, need_ms in rest),
        acknowledged=min(1, waits.acknowledged),
        doubted=ranks.get(waits.doubted, 0) if waits.doubted >= waits.acknowledged else 0,
        unknown=ranks.get(waits.unknown, 0) if waits.unknown >= waits.acknowledged else 0,
    )


def _tokens(situation: Situation, who: int) -> dict[int, int]:
    """New names of the questions of this node that may still be asked or answered."""
    line, own, peer = (
        situation.lines[who],
        situation.processes[who].memory,
        situation.processes[1 - who].memory,
    )
    names: dict[int, int] = {}
    if own is not None and own.asking:
        names[own.asking] = 1
    if line.words or line.strays:
        for _, word in line.words + line.strays:
            if word.asks:
                names.setdefault(word.asks, len(names) + 1)
    if peer is not None and peer.answers != peer.answers_published:
        for token in (peer.answers, peer.answers_published):
            if token:
                names.setdefault(token, len(names) + 1)
    return names
