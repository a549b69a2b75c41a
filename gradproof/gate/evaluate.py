"""`gradproof gate evaluate`: how good the gate is on labelled calls that it has not seen.

Each fold is scored by a gate that was fitted to the others; validation, early stopping and calibration use rows of the
other folds alone. Beside it, on the same folds, stands a logistic regression on character n-grams.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gradproof.gate import calls, folds, roc
from gradproof.gate.fit import Recipe, fit, logits
from gradproof.gate.network import GateConfig
from gradproof.gate.roc import Scored

LABELS = ("allow", "block")
MISSING = "the comparison needs scikit-learn: pip install 'gradproof[ablate]'"
MOST_GROUPS = 50  # in the record; the rest are added up

Watch = Callable[[int, int], None]


class Labelled(NamedTuple):
    """Calls with their labels. `source` is the file that a call came from."""

    text: list[str]
    command: list[str]  # what the baseline reads: the arguments' values as they are
    block_R: np.ndarray
    group: list[str]
    source: list[str]

    def of(self, rows: np.ndarray) -> Labelled:
        chosen = rows.tolist()
        pick = ([column[i] for i in chosen] for column in (self.text, self.command, self.group, self.source))
        text, command, group, source = pick
        return Labelled(text, command, self.block_R[rows], group, source)


def read(paths: Sequence[Path]) -> Labelled:
    """JSON lines, each a call or {"command": …} with its `label`; `group` says what belongs together. ValueError with
    the line's number for what cannot be read."""
    text, command, block, group, source = [], [], [], [], []
    for path in paths:
        for number, line in enumerate(_lines(path), 1):
            try:
                call, label, own = _row(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            text.append(calls.text(call))
            command.append("\n".join(value for _, value in calls.leaves("", call.arguments)))
            block.append(label == "block")
            group.append(f"{path.stem}/{own}")
            source.append(path.stem)
    block_R = np.array(block, dtype=bool)
    if not block_R.any() or block_R.all():
        raise ValueError(f"{', '.join(map(str, paths))}: calls of both labels are needed, allow and block")
    return Labelled(text, command, block_R, group, source)


def _lines(path: Path) -> list[bytes]:
    with open(path, "rb") as file:
        return [line for line in file.read().split(b"\n") if line.strip()]


def _row(line: bytes) -> tuple[calls.Call, str, str]:
    call = calls.parse(line)
    row = json.loads(line)
    label, group = row.get("label"), row.get("group", "")
    if label not in LABELS:
        raise ValueError(f"the label must be allow or block, not {label!r}")
    return call, label, str(group)


def by_folds(
    data: Labelled,
    *,
    count: int = 5,
    seeds: int = 1,
    seed: int = 0,
    config: GateConfig | None = None,
    recipe: Recipe | None = None,
    baseline: bool = True,
    say: Callable[[str], None] = lambda line: None,
    watch: Watch = lambda done, total: None,
) -> dict[str, Any]:
    """The record: figures over all folds and seeds, by group and by source, and beside the logistic regression."""
    started, ours, theirs, rows, by = time.perf_counter(), [], [], [], "row"
    for each in range(seed, seed + seeds):
        made = folds.make(data.text, data.block_R, data.group, count, each)
        by = made.by
        for fold in range(count):
            test, rest = np.flatnonzero(made.fold_R == fold), np.flatnonzero(made.fold_R != fold)
            ours.append(Scored(score(data, rest, test, each, config, recipe, watch), data.block_R[test]))
            rows.append(test)
            if baseline:
                theirs.append(Scored(char_ngrams(data, rest, test), data.block_R[test]))
            found = roc.figures(ours[-1:])
            say(f"seed {each}, fold {fold}: AUC {_shown(found['auc'])}, recall at 1% {_shown(found['recall_at_1pct'])}")
    record = {
        **roc.figures(ours),
        "rows": len(data.text),
        "blocks": int(data.block_R.sum()),
        "folds": count,
        "seeds": seeds,
        "split_by": by,
        "split": _told(by, count),
        "groups": grouped(ours, [[data.group[i] for i in test] for test in rows]),
        "sources": grouped(ours, [[data.source[i] for i in test] for test in rows]),
        "by_fold": [roc.figures([each]) for each in ours],
        "roc": roc.curve(*_pooled(ours)),
        "baseline": compared(ours, theirs) if theirs else {"name": "logistic regression", "note": MISSING},
        "seconds": time.perf_counter() - started,
    }
    return record


def score(
    data: Labelled,
    rest: np.ndarray,
    test: np.ndarray,
    seed: int,
    config: GateConfig | None,
    recipe: Recipe | None,
    watch: Watch = lambda done, total: None,
) -> np.ndarray:
    """1 − P(allow) of the test rows, by a gate fitted to the rest."""
    learned = data.of(rest)
    model = fit(learned.text, ~learned.block_R, seed=seed, config=config, recipe=recipe, watch=watch).model
    z_R = logits(model, [model.encode(data.text[i]) for i in test])
    return -(model.calibration.slope * z_R + model.calibration.offset)


def has_baseline() -> bool:
    """Whether scikit-learn is here."""
    try:
        import sklearn  # noqa: F401
    except ImportError:
        return False
    return True


def char_ngrams(data: Labelled, rest: np.ndarray, test: np.ndarray) -> np.ndarray:
    """The decision function of a logistic regression on tf-idf of characters, 1 to 5, classes balanced."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    vectors = TfidfVectorizer(analyzer="char", ngram_range=(1, 5), sublinear_tf=True, lowercase=False)
    x_RN = vectors.fit_transform([data.command[i] for i in rest])
    fitted = LogisticRegression(C=100.0, class_weight="balanced", solver="liblinear", max_iter=300)
    fitted.fit(x_RN, data.block_R[rest])
    return fitted.decision_function(vectors.transform([data.command[i] for i in test]))


def compared(ours: Sequence[Scored], theirs: Sequence[Scored]) -> dict[str, Any]:
    """The baseline's figures, its curve, and how ours differ."""
    return {
        "name": "logistic regression on character n-grams, 1 to 5",
        **roc.figures(theirs),
        "roc": roc.curve(*_pooled(theirs)),
        "ours_minus_theirs": roc.paired_bootstrap(ours, theirs),
        "note": "",
    }


def grouped(scored: Sequence[Scored], names: Sequence[Sequence[str]]) -> dict[str, dict[str, Any]]:
    """By name: rows, and AUC and recall at 1% of the name's own calls to block against all calls to allow of the fold,
    or, for a name with calls to allow alone, the share of them that is blocked there."""
    counts = Counter(name for each in names for name in each)
    shown = [name for name, _ in counts.most_common(MOST_GROUPS)]
    return {name: _group(scored, names, name, counts[name]) for name in shown}


def _group(scored: Sequence[Scored], names: Sequence[Sequence[str]], name: str, rows: int) -> dict[str, Any]:
    parts, alarms = [], []
    for fold, own in zip(scored, names, strict=True):
        mine = np.array([each == name for each in own])
        if not mine.any():
            continue
        if (mine & fold.block_R).any():
            kept = ~fold.block_R | mine
            parts.append(Scored(fold.score_R[kept], fold.block_R[kept]))
        if (mine & ~fold.block_R).any() and not fold.block_R.all():
            at = roc.threshold(fold.score_R[~fold.block_R], 0.01)
            alarms.append((fold.score_R[mine & ~fold.block_R] > at).mean())
    found = roc.figures(parts) if parts else dict.fromkeys(("auc", *roc.SHARES))
    false = float(np.mean(alarms)) if alarms else None
    return {"rows": rows, "auc": found["auc"], "recall_at_1pct": found["recall_at_1pct"], "false_blocks_at_1pct": false}


def _pooled(scored: Sequence[Scored]) -> tuple[np.ndarray, np.ndarray]:
    """All folds together; each fold's scores as ranks, so that none counts more for its scale."""
    ranks = []
    for fold in scored:
        allowed = np.sort(fold.score_R[~fold.block_R])
        ranks.append(np.searchsorted(allowed, fold.score_R, side="left") / max(1, len(allowed)))
    return np.concatenate(ranks), np.concatenate([fold.block_R for fold in scored])


def _told(by: str, count: int) -> str:
    """How the rows were split, in a sentence."""
    if by == "group":
        return f"groups and near-duplicates are kept together in {count} folds"
    return f"some class has fewer than {count} groups, so rows were split; near-duplicates are kept together"


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
