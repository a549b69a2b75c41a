"""`gradproof gate evaluate`: the quality of the gate on labelled calls that it has not seen.

Each fold is scored by a gate that was fitted to the others; validation, early stopping and calibration use rows of the
other folds alone. Of the made-up calls that every gate learns from, those that resemble a call to block of the data are
left out. Beside it, on the same folds, stands a logistic regression on character n-grams.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gradproof.gate import calls, folds, reading, roc
from gradproof.gate.calls import Call
from gradproof.gate.equal_form import trivial
from gradproof.gate.fit import Recipe, logits
from gradproof.gate.founding import fit_rows
from gradproof.gate.founding_rows import FoundingRow
from gradproof.gate.network import GateConfig, GateModel
from gradproof.gate.roc import Scored
from gradproof.gate.starter import MadeUp, made_up

MISSING = "the comparison needs scikit-learn: pip install 'gradproof[ablate]'"

HELD_OUT = 5  # one in so many of the other sources' calls sets the threshold
_PASSES = (("learning", "learning"), ("off", "learning off"))


class LabelledSet(NamedTuple):
    """Calls with their labels. `source` is the file that a call came from."""

    call: list[Call]
    text: list[str]
    block_R: np.ndarray
    group: list[str]
    source: list[str]
    acts: list[list[str]]  # the texts of each call's acts
    worst: list[int]  # the act of each call that the policy is strictest with
    outcome: list[str]  # what the policy says of each call
    trivial: list[bool]  # what a rule on form alone says of each call, as it was written
    form: Callable[[Call], Call] = lambda call: call  # how calls are written before they are read

    def of(self, rows: np.ndarray) -> LabelledSet:
        """Some of the rows, in that order."""
        chosen = rows.tolist()
        lists = [[one[i] for i in chosen] for one in self if isinstance(one, list)]
        return LabelledSet(*lists[:2], self.block_R[rows], *lists[2:], self.form)  # type: ignore[arg-type]

    def joined(self, other: LabelledSet) -> LabelledSet:
        """Both, one after the other."""
        lists = [[*a, *b] for a, b in zip(self, other, strict=True) if isinstance(a, list) and isinstance(b, list)]
        block_R = np.concatenate((self.block_R, other.block_R))
        return LabelledSet(*lists[:2], block_R, *lists[2:], self.form)  # type: ignore[arg-type]

    def taught(self) -> list[FoundingRow]:
        """The acts of each call; of a call to block the one that the policy is strictest with comes first."""
        return [
            FoundingRow(text, not block, group, number)
            for number, (acts, worst, block, group) in enumerate(
                zip(self.acts, self.worst, self.block_R, self.group, strict=True)
            )
            for text in dict.fromkeys([acts[worst], *acts] if block else acts)
        ]

    def made_up(self) -> MadeUp:
        """What was made up, in the form of these calls, less what resembles one of those to block."""
        blocked = self.of(np.flatnonzero(self.block_R))
        return made_up(tuple(dict.fromkeys(blocked.values())), self.form)

    def values(self) -> list[str]:
        """The arguments of each call as they are: what the baseline reads, and what near-duplicates are found in."""
        return ["\n".join(value for _, value in calls.leaves("", call.arguments)) for call in self.call]

    def require_both(self) -> LabelledSet:
        """Itself; ValueError without calls of both labels."""
        if not self.block_R.any() or self.block_R.all():
            sources = ", ".join(dict.fromkeys(self.source)) or "no file"
            raise ValueError(f"{sources}: needs calls of both labels, allow and block")
        return self


def read(paths: Sequence[Path], form: Callable[[Call], Call] = lambda call: call) -> LabelledSet:
    """JSON lines, each a call or {"command": …} with its `label`; `group` says what belongs together. ValueError with
    the line's number for what cannot be read. `form` is how a call is written before it is read."""
    call, block, group, source, by_form = [], [], [], [], []
    for path in paths:
        for labelled in calls.read_labelled(path):
            call.append(form(labelled.call))
            by_form.append(trivial(labelled.call))
            block.append(labelled.label == "block")
            group.append(labelled.group if len(paths) == 1 else f"{path.stem}/{labelled.group}")
            source.append(path.stem)
    done = [_acts(tool_call) for tool_call in call]
    acts, worst, outcome = ([one[i] for one in done] for i in range(3))
    text, block_R = [calls.text(tool_call) for tool_call in call], np.array(block, dtype=bool)
    return LabelledSet(call, text, block_R, group, source, acts, worst, outcome, by_form, form)  # type: ignore[arg-type]


def _acts(call: Call) -> tuple[list[str], int, str]:
    done = reading.read(call)
    return reading.act_texts(call, done.acts), done.worst, done.verdicts[done.worst].outcome


def by_folds(
    data: LabelledSet,
    *,
    count: int = 5,
    seeds: int = 1,
    seed: int = 0,
    config: GateConfig | None = None,
    recipe: Recipe | None = None,
    baseline: bool = True,
    say: Callable[[str], None] = lambda line: None,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """The record: figures over all folds and seeds, by group and by source, and beside the logistic regression."""
    data.require_both()
    started, ours, theirs, rows = time.perf_counter(), [], [], []
    more = data.made_up()
    made = folds.Folds(np.zeros(0), (), 0)
    for run_seed in range(seed, seed + seeds):
        made = folds.make(data.values(), data.block_R, data.group, count, run_seed, data.source)
        for fold in range(count):
            test, rest = np.flatnonzero(made.fold_R == fold), np.flatnonzero(made.fold_R != fold)
            ours.append(Scored(score(data, rest, test, run_seed, config, recipe, more, watch), data.block_R[test]))
            rows.append(test)
            if baseline:
                theirs.append(Scored(char_ngrams(data, rest, test), data.block_R[test]))
            own = roc.figures(ours[-1:])
            say(f"seed {run_seed}, fold {fold}: AUC {_shown(own['auc'])}, recall at 1% {_shown(own['recall_at_1pct'])}")
    return {
        "kind": "folds",
        **roc.figures(ours),
        "rows": len(data.text),
        "blocks": int(data.block_R.sum()),
        "folds": count,
        "seeds": seeds,
        "made_up": len(more.texts),
        "split_by_row": list(made.by_row),
        "split_near_duplicates": _labels(made),
        "split": _told(made, data.source, count),
        "groups": grouped(ours, [[data.group[i] for i in test] for test in rows], seeds),
        "sources": grouped(ours, [[data.source[i] for i in test] for test in rows], seeds),
        "by_fold": [roc.figures([scored]) for scored in ours],
        "roc": roc.curve(*_pooled(ours)),
        "baseline": compared(ours, theirs) if theirs else {"name": "logistic regression", "note": MISSING},
        "trivial": by_form(data),
        "policy": by_policy(data),
        "seconds": time.perf_counter() - started,
    }


def score(
    data: LabelledSet,
    rest: np.ndarray,
    test: np.ndarray,
    seed: int,
    config: GateConfig | None,
    recipe: Recipe | None,
    more: MadeUp,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> np.ndarray:
    """1 − P(allow) of the test rows, by a gate fitted to the rest and to what was made up."""
    model = fit_rows(data.of(rest).taught(), seed=seed, config=config, recipe=recipe, more=more, watch=watch)
    return model_scores(model, data.of(test))


def model_scores(model: GateModel, data: LabelledSet) -> np.ndarray:
    """How far each call is from being allowed: that of its worst act."""
    distinct = list(dict.fromkeys(text for acts in data.acts for text in acts))
    z = dict(zip(distinct, logits(model, [model.encode(text) for text in distinct]).tolist(), strict=True))
    least_R = np.array([min(z[text] for text in acts) for acts in data.acts])
    return -(model.calibration.slope * least_R + model.calibration.offset)


def by_form(data: LabelledSet) -> dict[str, float]:
    """What the rule on form alone catches, and what it flags of the calls to allow."""
    flagged_R = np.array(data.trivial, dtype=bool)
    return {"recall": _share(flagged_R[data.block_R]), "false_blocks": _share(flagged_R[~data.block_R])}


def by_policy(data: LabelledSet) -> dict[str, float]:
    """What the default policy says, without any model: shares of the calls to block, and of those to allow."""
    said = np.array(data.outcome)
    return {
        f"{name}_{outcome}": _share(said[rows] == outcome)
        for name, rows in (("harmful", data.block_R), ("harmless", ~data.block_R))
        for outcome in ("ask", "block")
    }


def _share(chosen: np.ndarray) -> float:
    return float(chosen.mean()) if len(chosen) else 0.0


def by_left_out_source(
    data: LabelledSet,
    *,
    seed: int = 0,
    config: GateConfig | None = None,
    recipe: Recipe | None = None,
    say: Callable[[str], None] = lambda line: None,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Each source with calls to block is scored by a gate that learned from the others. The threshold flags 1% of calls
    to allow of the others that it did not learn from."""
    data.require_both()
    started, sources = time.perf_counter(), {}
    source_R = np.array(data.source)
    for name in dict.fromkeys(data.source):
        own, others = np.flatnonzero((source_R == name) & data.block_R), np.flatnonzero(source_R != name)
        rest = data.of(others)
        if not len(own) or not rest.block_R.any() or rest.block_R.all():
            continue
        made = folds.make(rest.values(), rest.block_R, rest.group, HELD_OUT, seed, rest.source)
        learned, held = others[made.fold_R != 0], others[(made.fold_R == 0) & ~rest.block_R]
        more = data.of(own).made_up()
        score_H = score(data, learned, np.concatenate((held, own)), seed, config, recipe, more, watch)
        sources[name] = _left_out(data, score_H, held, own)
        told = sources[name]
        say(f"{name} left out: AUC {_shown(told['auc'])}, recall at 1% {told['recall_at_1pct']:.4f}")
    if not sources:
        raise ValueError("--leave-source-out needs several --data, with calls of both labels beside each one left out")
    return {"kind": "left_out", "sources": sources, "seconds": time.perf_counter() - started}


def _left_out(data: LabelledSet, score_H: np.ndarray, held: np.ndarray, own: np.ndarray) -> dict[str, Any]:
    said, block_H = np.array(data.outcome), np.arange(len(score_H)) >= len(held)
    return {
        "rows": len(own),
        "auc": roc.auc(score_H, block_H),
        **caught(score_H, block_H, said[np.concatenate((held, own))]),
        "policy": {outcome: float((said[own] == outcome).mean()) for outcome in ("ask", "block")},
        "policy_on_allowed": {outcome: float((said[held] == outcome).mean()) for outcome in ("ask", "block")},
    }


def caught(score_R: np.ndarray, block_R: np.ndarray, outcome_R: np.ndarray) -> dict[str, float | None]:
    """Of the calls to block, the share that the model flags (`recall_at_1pct`), and that the policy asks about or
    blocks or the model flags: at the threshold that flags 1% of the calls to allow (`with_policy`), and at the one
    where 1% of them is flagged beyond what the policy asks about anyway (`gate_at_1pct`)."""
    if not block_R.any() or block_R.all():
        return {"recall_at_1pct": None, "with_policy": None, "gate_at_1pct": None}
    passes_R, allowed = outcome_R == "allow", int((~block_R).sum())
    at = roc.threshold(score_R[~block_R], 0.01)
    free = np.sort(score_R[~block_R & passes_R])[::-1]
    beyond = float(free[min(len(free) - 1, int(0.01 * allowed))]) if len(free) else -np.inf
    return {
        "recall_at_1pct": float((score_R > at)[block_R].mean()),
        "with_policy": float(((score_R > at) | ~passes_R)[block_R].mean()),
        "gate_at_1pct": float(((score_R > beyond) | ~passes_R)[block_R].mean()),
    }


def has_baseline() -> bool:
    """Whether scikit-learn is here."""
    try:
        import sklearn  # noqa: F401
    except ImportError:
        return False
    return True


def char_ngrams(data: LabelledSet, rest: np.ndarray, test: np.ndarray) -> np.ndarray:
    """The decision function of a logistic regression on tf-idf of characters, 1 to 5, classes balanced."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    vectors = TfidfVectorizer(analyzer="char", ngram_range=(1, 5), sublinear_tf=True, lowercase=False)
    values = data.values()
    x_RN = vectors.fit_transform([values[i] for i in rest])
    fitted = LogisticRegression(C=100.0, class_weight="balanced", solver="liblinear", max_iter=300)
    fitted.fit(x_RN, data.block_R[rest])
    return fitted.decision_function(vectors.transform([values[i] for i in test]))


def compared(ours: Sequence[Scored], theirs: Sequence[Scored]) -> dict[str, Any]:
    """The baseline's figures, its curve, and how ours differ."""
    return {
        "name": "logistic regression on character n-grams, 1 to 5",
        **roc.figures(theirs),
        "roc": roc.curve(*_pooled(theirs)),
        "ours_minus_theirs": roc.paired_bootstrap(ours, theirs),
        "note": "",
    }


def grouped(scored: Sequence[Scored], names: Sequence[Sequence[str]], seeds: int = 1) -> dict[str, dict[str, Any]]:
    """By name, the largest first: rows; AUC and recall at 1% of the name's own calls to block against all calls to
    allow of the fold; the share of its calls to allow that is blocked there. Means over the folds."""
    by_name: dict[str, dict[str, list[float]]] = {}
    rows = Counter(name for own in names for name in own)
    for fold, own in zip(scored, names, strict=True):
        allowed = np.sort(fold.score_R[~fold.block_R])
        if not len(allowed):
            continue
        at = roc.threshold(allowed, 0.01)
        for name, members in _members(own).items():
            score_R, block_R = fold.score_R[members], fold.block_R[members]
            into = by_name.setdefault(name, {"auc": [], "recall_at_1pct": [], "false_blocks_at_1pct": []})
            if block_R.any():
                below = [np.searchsorted(allowed, score_R[block_R], side).mean() for side in ("left", "right")]
                into["auc"].append(sum(below) / (2 * len(allowed)))
                into["recall_at_1pct"].append((score_R[block_R] > at).mean())
            if not block_R.all():
                into["false_blocks_at_1pct"].append((score_R[~block_R] > at).mean())
    means = {
        name: {key: float(np.mean(values)) if values else None for key, values in figures.items()}
        for name, figures in by_name.items()
    }
    return {name: {"rows": count // seeds, **means[name]} for name, count in rows.most_common() if name in means}


def _members(names: Sequence[str]) -> dict[str, list[int]]:
    """The rows of each name."""
    members: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        members.setdefault(name, []).append(i)
    return members


def _pooled(scored: Sequence[Scored]) -> tuple[np.ndarray, np.ndarray]:
    """All folds together; each fold's scores as ranks, so that none counts more for its scale."""
    ranks = []
    for fold in scored:
        allowed = np.sort(fold.score_R[~fold.block_R])
        ranks.append(np.searchsorted(allowed, fold.score_R, side="left") / max(1, len(allowed)))
    return np.concatenate(ranks), np.concatenate([fold.block_R for fold in scored])


def _labels(made: folds.Folds) -> list[str]:
    """The labels whose near-duplicates were split."""
    return ["block" if block else "allow" for block in made.torn]


def _told(made: folds.Folds, source: Sequence[str], count: int) -> str:
    """How the rows were split, in a sentence."""
    own = set(made.by_row)
    all_split = own == set(source)
    parts = []
    if own:
        whose, rest = ("", "") if all_split else (f" of {', '.join(made.by_row)}", "; groups of the others")
        parts.append(f"a label has fewer than {count} groups, so rows{whose} were split{rest}")
    if made.torn:
        labels = " and ".join(_labels(made))
        parts.append(f"near-duplicates among the calls to {labels} were split: they form fewer than {count} clusters")
        return "; ".join(parts)
    if not own:
        return f"groups and near-duplicates are kept together in {count} folds"
    return "; ".join([*parts, "near-duplicates are kept together"])


def lines(record: dict[str, Any]) -> list[str]:
    """The record for a terminal."""
    if record["kind"] == "stream":
        return _stream_lines(record)
    if record["kind"] == "left_out":
        return _left_out_lines(record)
    told = [f"{record['rows']:,} calls, {record['blocks']:,} to block; {record['split']}"]
    rows = [("the gate", record), ("logistic regression", record["baseline"])]
    for name, figures in rows:
        if figures.get("auc") is not None:
            told.append(f"{name + ':':21}{_figures(figures)}")
    for name, by in record["baseline"].get("ours_minus_theirs", {}).items():
        told.append(f"  {name}: {by['difference']:+.4f}, 95% from {by['low']:+.4f} to {by['high']:+.4f}")
    form, policy = record["trivial"], record["policy"]
    told.append(
        f"a line break or #{{ alone: recall {form['recall']:.4f}, {form['false_blocks']:.2%} of allowed calls blocked;"
        f" the policy alone blocks {policy['harmful_block']:.1%} and asks about {policy['harmful_ask']:.1%} of the"
        f" calls to block, and blocks {policy['harmless_block']:.1%} and asks about {policy['harmless_ask']:.1%} of the"
        " calls to allow"
    )
    if len(record["sources"]) > 1:
        told += [f"  {name}: {_source(figures)}" for name, figures in record["sources"].items()]
    return [*told, f"{record['seconds']:.0f} s"]


def _left_out_lines(record: dict[str, Any]) -> list[str]:
    told = []
    for name, by in record["sources"].items():
        policy, allowed = by["policy"], by["policy_on_allowed"]
        told.append(
            f"{name}, left out: {by['rows']:,} calls to block; model alone: AUC {_shown(by['auc'])}, recall"
            f" {by['recall_at_1pct']:.4f} at 1%; policy alone: {policy['block']:.1%} blocked, {policy['ask']:.1%}"
            f" asked; either: {by['with_policy']:.4f}, and {by['gate_at_1pct']:.4f} where the model flags 1% of the"
            f" calls to allow beyond the policy, which asks about {allowed['ask']:.1%} and blocks"
            f" {allowed['block']:.1%} of them"
        )
    return [*told, f"{record['seconds']:.0f} s"]


def _stream_lines(record: dict[str, Any]) -> list[str]:
    own, earlier = f"{record['rows']:,} calls in order, {record['blocks']:,} to block", record["trained_on"]
    told = [f"{own}, after {earlier:,} training calls"]
    for point, at in record["points"].items():
        rest = record["learning"]["rest"][point]
        after = f"after the first {at} calls" if point == "positions" else f"after 100 corrections and {at} calls"
        said = f"{rest['corrections_before']} corrections; {rest['rows']:,} calls, {rest['blocks']:,} to block"
        told.append(f"{after} ({said}):")
        told += [f"  {name + ':':14}{_figures(record[key]['rest'][point])}" for key, name in _PASSES]
        told += [f"  {name} and policy: {_with_policy(record[key]['rest'][point])}" for key, name in _PASSES]
    if "corrections" not in record["points"]:
        told.append("there were fewer than 100 corrections, so nothing was scored after 100")
    lost = record["old_auc_lost"]
    told.append(
        f"AUC on {record['old_rows']:,} old held-out calls: {_shown(record['off']['old_auc'])} before,"
        f" {_shown(record['learning']['old_auc'])} after" + ("" if lost is None else f"; lost {lost:+.4f}")
    )
    one = record["learning"]
    told.append(f"{one['corrections']} corrections, {one['rounds']} rounds, {one['versions']} new versions")
    return [*told, f"{record['seconds']:.0f} s"]


def _figures(figures: dict[str, Any]) -> str:
    one, tenth = _shown(figures["recall_at_1pct"]), _shown(figures["recall_at_0_1pct"])
    return f"AUC {_shown(figures['auc'])}, recall {one} at 1% and {tenth} at 0.1% of allowed calls blocked"


def _with_policy(figures: dict[str, Any]) -> str:
    """What the whole gate catches, a question counting as caught."""
    literal, beyond = _shown(figures.get("with_policy")), _shown(figures.get("gate_at_1pct"))
    return f"{literal} asked about or blocked at 1%; {beyond} at 1% beyond what the policy asks about"


def _source(figures: dict[str, Any]) -> str:
    if figures["auc"] is None:
        return f"{figures['rows']:,} rows, {figures['false_blocks_at_1pct']:.2%} blocked at 1%"
    return f"{figures['rows']:,} rows, AUC {_shown(figures['auc'])}, recall {_shown(figures['recall_at_1pct'])} at 1%"


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
