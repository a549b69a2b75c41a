"""What each part of the gate's model adds, on sources that were left out of training: n-grams of the one command,
features of the act, the transformer, alone and together.

    python benchmarks/gate_parts.py --data slp.jsonl --data tldr.jsonl --data redcode_bash.jsonl \
        --data atomic_red_team.jsonl [--seed 0] [--json FILE]

Form is made equal. One gate with all parts is fitted for each source; then each part scores alone, and all sums,
as `gate evaluate --leave-source-out` does: the threshold flags 1% of calls to allow of the other sources that were not
learned from. A call is as risky as its riskiest act.
"""

from __future__ import annotations

import argparse
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gradproof.gate import evaluate, folds, roc
from gradproof.gate.equal_form import equal_form
from gradproof.gate.evaluate import HELD_OUT, LabelledSet
from gradproof.gate.fit import logits, logits_of
from gradproof.gate.founding import fit_rows
from gradproof.gate.network import FEATURES, NGRAMS, GateConfig, GateModel

LAYERS = 3  # of the transformer


def part_scores(model: GateModel, data: LabelledSet) -> dict[str, np.ndarray]:
    """What each part says of each distinct act's text, by name; high is risky."""
    texts = list(dict.fromkeys(text for acts in data.acts for text in acts))
    rows, first = [model.encode(text) for text in texts], model.network.config.vocabulary
    sparse = {
        name: -logits_of(
            model.network,
            [[number for number in row if number - first in layer.numbers] for row in rows],
            model.network.params[layer.weight],
            layer,
        )
        for name, layer in (("n-grams", NGRAMS), ("features", FEATURES))
    }
    encoder = -logits(model, [[number for number in row if number < first] for row in rows])
    place = {text: i for i, text in enumerate(texts)}
    of_call = [[place[text] for text in acts] for acts in data.acts]
    return {**sparse, "transformer": encoder, "calls": np.array(of_call, dtype=object)}


def measure(data: LabelledSet, name: str, seed: int) -> list[dict[str, Any]]:
    """A row for each sum of parts, for one source left out."""
    source_R = np.array(data.source)
    own, others = np.flatnonzero((source_R == name) & data.block_R), np.flatnonzero(source_R != name)
    rest = data.of(others)
    made = folds.make(rest.values(), rest.block_R, rest.group, HELD_OUT, seed, rest.source)
    learned, held = others[made.fold_R != 0], others[(made.fold_R == 0) & ~rest.block_R]
    config = GateConfig(encoder_layers=LAYERS)
    model = fit_rows(data.of(learned).taught(), seed=seed, config=config, more=data.of(own).made_up())
    test = data.of(np.concatenate((held, own)))
    scores = part_scores(model, test)
    calls = scores.pop("calls")
    block_H, outcome_H = np.arange(len(test.text)) >= len(held), np.array(test.outcome)
    rows = []
    for count in (1, 2, 3):
        for chosen in combinations(scores, count):
            act_A = sum(scores[part] for part in chosen)
            score_H = np.array([max(act_A[i] for i in acts) for acts in calls])
            figures = {"auc": roc.auc(score_H, block_H), **evaluate.caught(score_H, block_H, outcome_H)}
            rows.append({"source": name, "parts": list(chosen), **figures})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, action="append", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = evaluate.read(options.data, equal_form)
    blocked = {source for source, block in zip(data.source, data.block_R, strict=True) if block}
    rows = []
    for name in (source for source in dict.fromkeys(data.source) if source in blocked):
        for row in measure(data, name, options.seed):
            rows.append(row)
            print(
                f"{row['source']:18} {' + '.join(row['parts']):34} AUC {row['auc']:.4f}  recall at 1%"
                f" {row['recall_at_1pct']:.3f}  with the policy {row['with_policy']:.3f}, {row['gate_at_1pct']:.3f}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
