"""How a gate begins: labelled calls, a model of them, thresholds from those that were held back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gradproof.gate import calls, folds
from gradproof.gate.calls import Call
from gradproof.gate.fit import fit
from gradproof.gate.journal import MOST_EXAMPLES
from gradproof.gate.learner import Known, logits, score, settle, version_record
from gradproof.gate.network import Calibration, GateModel
from gradproof.gate.packing import weights_of
from gradproof.gate.policy import ASK, calibrate, choose
from gradproof.gate.reading import learned_texts
from gradproof.gate.secrets import redact
from gradproof.gate.signals import signal
from gradproof.gate.starter import starter
from gradproof.gate.store import Settings, Store

FOLDS = 5  # one is held back


class FoundingRow(NamedTuple):
    """An act of a labelled call; `group` names what must stay together, `call` the call that it belongs to."""

    text: str
    allow: bool
    group: str
    call: int = -1


def read_rows(path: Path) -> list[FoundingRow]:
    """JSON lines with a call, `label` (allow or block) and, if there is one, `group`."""
    rows = [
        row
        for number, labelled in enumerate(calls.read_labelled(path))
        for row in act_rows(labelled.call, labelled.label == "allow", labelled.group or str(number), number)
    ]
    if len({row.allow for row in rows}) < 2:
        raise ValueError(f"{path} needs calls of both labels, allow and block; it has {len(rows)} rows")
    return rows


def starter_rows(seed: int = 0) -> list[FoundingRow]:
    """The project's own."""
    return [row for i, (call, allow) in enumerate(starter(seed=seed)) for row in act_rows(call, allow, str(i), i)]


def act_rows(call: Call, allow: bool, group: str, number: int) -> list[FoundingRow]:
    """What a labelled call teaches."""
    return [FoundingRow(redact(text), allow, group, number) for text in learned_texts(call, allow)]


def split(rows: Sequence[FoundingRow], seed: int = 0) -> tuple[list[FoundingRow], list[FoundingRow]]:
    """(to learn, held back): stratified, near-duplicates and groups together, as `gate evaluate` does it."""
    made = folds.make([r.text for r in rows], [r.allow for r in rows], [r.group for r in rows], FOLDS, seed)
    held = [row for row, fold in zip(rows, made.fold_R, strict=True) if fold == 0]
    kept = [row for allow in (True, False) for row in [r for r in held if r.allow == allow][: MOST_EXAMPLES["held"]]]
    learned = [row for row, fold in zip(rows, made.fold_R, strict=True) if fold != 0]
    return learned, kept


def found(
    store: Store, gate: GateModel, learned: Sequence[FoundingRow], held: Sequence[FoundingRow], *, people: bool = True
) -> int:
    """Puts a trained model into a store, with the calls that it will replay and be held against; returns its version.
    Labels that `people` gave count as judgements; made-up ones do not."""
    journal = store.journal
    for where, rows in (("replay", learned), ("held", held)):
        journal.add(where, [(row.text, signal("allow" if row.allow else "block")) for row in rows])
    known = Known(journal.examples("held"), [], [])
    z = logits(gate, known.texts())
    policy = settle(gate, known, z, store.settings, ASK)
    if people:
        journal.judge_held(judged_in_halves(gate, held, z, store.settings))
    more = dict(came_from=0, signals=0, people=people)
    record = version_record(gate, policy, score(gate, policy, known, z), store, **more)
    number = store.versions.add(weights_of(gate), record)
    assert number is not None
    return number


def judged_in_halves(
    gate: GateModel, held: Sequence[FoundingRow], z: dict[str, float], settings: Settings
) -> list[tuple[bool, bool]]:
    """How the model agrees with the labels of held-back calls, (allow, agreed) each: half of the calls is decided by
    the thresholds of the other half. A call is as probable as its least probable act."""
    least: dict[int, FoundingRow] = {}
    for row in held:
        if row.text in z and (row.call not in least or z[row.text] < z[least[row.call].text]):
            least[row.call] = row
    rows = list(least.values())
    allow_T = np.array([row.allow for row in rows], dtype=bool)
    z_T = np.array([z[row.text] for row in rows])
    judged = []
    for half in (0, 1):
        own_T = np.arange(len(rows)) % 2 == half
        fitted = GateModel(gate.network, Calibration(*calibrate(z_T[~own_T], allow_T[~own_T])))
        p_T = fitted.calibrated(z_T)
        policy = choose(p_T[~own_T], allow_T[~own_T], settings.false_allow, settings.false_block)
        judged += [
            (bool(allow), policy.leans(float(p)) == bool(allow))
            for p, allow in zip(p_T[own_T], allow_T[own_T], strict=True)
        ]
    return judged


def train(rows: Sequence[FoundingRow], seed: int, say: Callable[[str], None]) -> GateModel:
    """The first model."""
    texts, allow = [row.text for row in rows], [row.allow for row in rows]
    say(f"training on {len(rows):,} calls")
    return fit(texts, allow, seed=seed, watch=lambda done, total: say(f"training {done} of {total}")).model
