"""Creates a gate: labelled calls, a model trained on them, and thresholds from held-back calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gradproof.gate import folds
from gradproof.gate.features import MARK
from gradproof.gate.fit import fit
from gradproof.gate.founding_rows import FoundingCall, FoundingRow, rows_of
from gradproof.gate.journal import MOST_EXAMPLES
from gradproof.gate.learner import Known, logits, score, settle, version_record
from gradproof.gate.network import Calibration, GateModel
from gradproof.gate.packing import weights_of
from gradproof.gate.policy import ASK, calibrate, choose
from gradproof.gate.signals import signal
from gradproof.gate.starter import starter
from gradproof.gate.store import Settings, Store

FOLDS = 5  # one is held back


def starter_rows(seed: int = 0) -> list[FoundingRow]:
    """Those of the calls that Gradproof makes up."""
    return rows_of(FoundingCall(call, allow, str(i), i) for i, (call, allow) in enumerate(starter(seed)))


def riskiest(gate: GateModel, rows: Sequence[FoundingRow]) -> list[FoundingRow]:
    """All acts of calls to allow; of each call to block the one that the model holds for the worst."""
    acts: dict[int, list[FoundingRow]] = {}
    for row in rows:
        if not row.allow:
            acts.setdefault(row.call, []).append(row)
    z = logits(gate, [row.text for own in acts.values() if len(own) > 1 for row in own])  # one act needs no choice
    worst = [min(own, key=lambda row: z[row.text]) if len(own) > 1 else own[0] for own in acts.values()]
    return [*(row for row in rows if row.allow), *worst]


def split(rows: Sequence[FoundingRow], seed: int = 0) -> tuple[list[FoundingRow], list[FoundingRow]]:
    """(to learn, held back): whole calls, stratified, near-duplicates and groups together, as in `gate evaluate`."""
    first = {row.call: row for row in reversed(rows)}
    said: dict[int, str] = {}
    for row in rows:
        said[row.call] = said.get(row.call, "") + row.text.partition(f"\n{MARK}")[0]
    own = list(first.values())
    made = folds.make([said[r.call] for r in own], [r.allow for r in own], [r.group for r in own], FOLDS, seed)
    held_back = {row.call for row, fold in zip(own, made.fold_R, strict=True) if fold == 0}
    return [row for row in rows if row.call not in held_back], [row for row in rows if row.call in held_back]


def found(
    store: Store, gate: GateModel, learned: Sequence[FoundingRow], held: Sequence[FoundingRow], *, people: bool = True
) -> int:
    """Puts a trained model into a store, with the calls that it will replay and be held against; returns its version.
    Labels that `people` gave count as judgements; made-up ones do not."""
    journal, held = store.journal, most(riskiest(gate, held))
    for where, rows in (("replay", riskiest(gate, learned)), ("held", held)):
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


def most(held: Sequence[FoundingRow]) -> list[FoundingRow]:
    """As many of each label as are held back."""
    return [row for allow in (True, False) for row in [r for r in held if r.allow == allow][: MOST_EXAMPLES["held"]]]


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


def fit_rows(rows: Sequence[FoundingRow], **options: Any) -> GateModel:
    """A model of these acts; options as for `fit`. On one thread: its products are small, and two would wait."""
    torch.set_num_threads(1)
    texts, allow, calls_R = [row.text for row in rows], [row.allow for row in rows], [row.call for row in rows]
    return fit(texts, allow, call_R=np.array(calls_R), **options).model
