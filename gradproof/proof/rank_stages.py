"""Stages of a trial on all ranks, and the message if a rank does not complete one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gradproof.proof.rank_figures import RankSetting
from gradproof.proof.rank_trial import started
from gradproof.proof.rank_watch import Whereabouts, whereabouts
from gradproof.proof.runner import CannotRun
from gradproof.ranks.pool import Pool, RankFailed

START = 120.0  # seconds for the processes to start, at least
SPEAKS = ("CannotRun", "CaseError")  # exceptions whose message says all


class RankStopped(Exception):
    """A rank did not come to the end of a stage: how that counts, and the sentence that names it."""

    def __init__(self, status: str, sentence: str):
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


@dataclass
class Stage:
    """Runs one function on all ranks, and says in a sentence what kept them from ending it."""

    pool: Pool
    setting: RankSetting

    def __call__(self, words: str, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        try:
            self.pool.run(started, seconds=max(START, self.setting.timeout))  # it has been, mostly
            return self.pool.run(function, *arguments, seconds=self.setting.timeout)
        except RankFailed as failure:
            raise self._stopped(words, failure) from failure

    def _stopped(self, words: str, failure: RankFailed) -> Exception:
        if failure.kind in SPEAKS:
            of_all = failure.message.startswith(self.setting.text)
            return CannotRun(failure.message if of_all else f"rank {failure.rank}: {failure.message}")
        if failure.kind:
            return RankStopped(
                "raised", f"rank {failure.rank} raised {failure.kind} in {words}: {failure.message[:300]}"
            )
        if not failure.missing:
            mismatch = "; gloo aborts where ranks call different collectives" if "code -6" in failure.message else ""
            return RankStopped("inconclusive", f"rank {failure.rank} {failure.message} in {words}{mismatch}")
        places = {rank: whereabouts(self.setting.folder, rank) for rank in failure.missing}
        return RankStopped(*hung(words, places, self.pool.ranks, self.setting.timeout))


def hung(words: str, places: Mapping[int, Whereabouts | None], ranks: int, timeout: float) -> tuple[str, str]:
    """How it counts that some ranks did not end a stage, and the sentence for it. Ranks that wait in vain have taken
    part in other collectives than the rest; one that computes, or no longer answers, says nothing about the code."""
    rest = [rank for rank in range(ranks) if rank not in places]
    told = [f"rank {rank}{_where(place)}" for rank, place in places.items()]
    for (rank, place), one in zip(places.items(), told, strict=True):
        if place is None:
            return "inconclusive", f"rank {rank} no longer answers in {words}"
        if place.busy:
            return "inconclusive", f"{one} is still computing in {words} after {timeout:.0f} s; raise --timeout"
    same = "all ranks must call the same collectives in the same order"
    if not rest:
        return "refuted", f"the ranks wait for each other in {words}: {', '.join(told)}; {same}"
    left = f"rank {rest[0]} has" if len(rest) == 1 else f"ranks {', '.join(map(str, rest))} have"
    waits = "waits" if len(told) == 1 else "wait"
    return "refuted", f"{' and '.join(told)} {waits} in {words}, which {left} finished; {same}"


def _where(place: Whereabouts | None) -> str:
    if place is None:
        return ""
    return f" (in {place.function}{f', called at {place.line}' if place.line else ''})"
