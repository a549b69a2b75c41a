"""The proof that a run begins with: its own options at a small width, kept in evidence.jsonl."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gradproof.files import write_atomically
from gradproof.models.ensemble import Ensemble
from gradproof.models.model import Model
from gradproof.models.subject import judge_config
from gradproof.train.run import Run
from gradproof.train.stopped import Stopped


def read_evidence(file: Path) -> list[dict[str, Any]]:
    """The records of evidence.jsonl; none where it is not there or not whole."""
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return []


def prove(run: Run, model: Model) -> None:
    """evidence.jsonl: the run's own options at a small width, judged before the first step."""
    file = run.path / "evidence.jsonl"
    if not read_evidence(file):
        # What trains of an ensemble is its members, each by itself.
        config = model.config.member if isinstance(model, Ensemble) else model.config
        verdict = judge_config(run.config.model, config, seed=run.config.seed)
        write_atomically(file, "".join(json.dumps(asdict(evidence)) + "\n" for evidence in verdict.evidence))
    records = read_evidence(file)
    refuted = [
        f"{record['claim']} of {record['value'] or record['subject']}"
        for record in records
        if record["status"] == "refuted"
    ]
    if refuted:
        raise Stopped(f"the backward pass of this config is refuted: {', '.join(refuted)}; nothing was trained")
