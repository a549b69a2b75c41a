"""Explains a decision: the deciding act and line, and the features that moved the model most.

The logit of an act is a sum over its n-grams and features (`network.py`), so each has its share of it exactly:

    z = Σ_g a_g·w[gram_g] + Σ_h a_h·v[feature_h] + encoder

The share of an n-gram is divided evenly among the places where it occurs and the letters that it covers there; what the
letters of a word got is the word's. What is listed and `rest` add up to the logit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from gradproof.gate.acts.act import Act
from gradproof.gate.corrections import restored
from gradproof.gate.features import MARK, named_features
from gradproof.gate.network import FEATURE_SCALE, FEATURE_WEIGHT, SCALE, WEIGHT, GateModel
from gradproof.gate.ngrams import NUMBERS, placed
from gradproof.gate.serving import Serving
from gradproof.gate.standing import told
from gradproof.ops import hashed_ngrams

MOST = 6  # features, and as many words
WORD = re.compile(rb"\S+")


def explanation(serving: Serving, decision: Mapping[str, Any]) -> dict[str, Any]:
    """Of a decision as the journal keeps it, by the version that serves now."""
    worst = min(decision["worst"], len(decision["texts"]) - 1)
    act = restored(decision["acts"][worst])
    said = {"act": worst, "does": does(act), "by": decision["by"], "because": decision["because"]}
    return said | shares(serving.gate, decision["texts"][worst])


def does(act: Act) -> str:
    """An act in words."""
    return told(act)


@torch.inference_mode()
def shares(gate: GateModel, text: str) -> dict[str, Any]:
    """What each feature and each word of an act's text adds to the logit, the largest first."""
    row = gate.encode(text)
    z = float(gate.logits([row])[0])
    _, gram_BG, feature_BG = gate.network.split(gate.batch([row]))
    params, buffers = gate.network.params, gate.network.buffers
    vocabulary, first = gate.network.config.vocabulary, gate.network.config.vocabulary + NUMBERS
    numbers = np.array([number for number in row if number >= vocabulary])
    _, a_G = hashed_ngrams.forward(gram_BG, buffers[SCALE], params[WEIGHT])
    _, a_H = hashed_ngrams.forward(feature_BG, buffers[FEATURE_SCALE], params[FEATURE_WEIGHT])
    ngram_G = (a_G * params[WEIGHT][gram_BG.clamp(min=0)] * (gram_BG >= 0))[0].double().numpy()
    feature_H = (a_H * params[FEATURE_WEIGHT][feature_BG.clamp(min=0)] * (feature_BG >= 0))[0].double().numpy()
    by_gram = {int(n) - vocabulary: ngram_G[i] for i, n in enumerate(numbers) if n < first}
    by_feature = {int(n) - first: feature_H[i] for i, n in enumerate(numbers) if n >= first}
    named = _of_features(by_feature, text)
    words = _of_words(by_gram, text.partition(f"\n{MARK}")[0])
    listed = [*_largest(named, "feature"), *_largest(words, "word")]
    listed.sort(key=lambda entry: -abs(entry["share"]))
    p = float(gate.calibrated(np.array([z]))[0])
    rest = z - sum(entry["share"] for entry in listed)
    return {"model": p, "logit": z, "features": listed, "rest": rest}


def _of_features(by_number: Mapping[int, float], text: str) -> dict[str, float]:
    """By name; of names that share a number, the first stands for all."""
    named: dict[str, float] = {}
    seen: set[int] = set()
    for name, number in sorted(named_features(text)):
        if number not in seen:
            seen.add(number)
            named[name] = by_number.get(number, 0.0)
    return named


def _of_words(by_number: Mapping[int, float], command: str) -> dict[str, float]:
    """By word; white space belongs to no word, and what it got is part of the rest."""
    plain = command.encode()
    share_L = np.zeros(len(plain))
    for length, number_L in placed(command):
        count = np.unique(number_L, return_inverse=True, return_counts=True)
        times_L = count[2][count[1]]
        each_L = np.array([by_number.get(int(number), 0.0) for number in number_L]) / times_L / length
        for offset in range(length):
            share_L[offset : offset + len(each_L)] += each_L
    named: dict[str, float] = {}
    for match in WORD.finditer(plain):
        word = match[0].decode("utf-8", "replace")
        named[word] = named.get(word, 0.0) + float(share_L[match.start() : match.end()].sum())
    return named


def _largest(named: Mapping[str, float], kind: str) -> list[dict[str, Any]]:
    chosen = sorted(named.items(), key=lambda item: -abs(item[1]))[:MOST]
    return [{kind: name, "share": float(share)} for name, share in chosen if share]
