"""Corrections, their dangerous twins and their paraphrases: what one person's word opens, and what it changes
elsewhere.

    python benchmarks/gate_corrections.py [--set tests/gate/acts/corrections.jsonl] [--others FILE.jsonl] [--json FILE]

A set has a line for each correction: `call`, `kind`, `twins` that it must not open, `paraphrases` that it should.
Each is given to a store of its own. Counted: twins that are allowed because of it, paraphrases that are allowed after
it. With --others, labelled calls: of 10,000 of them, how many decisions a block of the same act changes.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradproof.gate.calls import Call, parse, read_labelled
from gradproof.gate.corrections import Correction, Corrections, digest
from gradproof.gate.reading import ReadCall, read

HOME, STORE, OTHERS = "/home/dev", Path("/home/dev/.local/state/gradproof/gates/default"), 10_000


def corrected(call: Call, allow: bool) -> Corrections:
    """A memory that holds one correction."""
    done = read(call, STORE)
    return Corrections([Correction("c1", "d1", 1, allow, digest(call), tuple(done.acts), done.worst)])


def decision(call: Call, done: ReadCall, memory: Corrections) -> str:
    """What the floor, a correction and the policy say of a call, without rules and model."""
    outcome = done.verdicts[done.worst].outcome
    if any(verdict.floor and verdict.outcome != "allow" for verdict in done.verdicts):
        return outcome
    found = memory.find(digest(call), done.acts)
    return outcome if found is None else "allow" if found.allow else "block"


def measure(sets: Sequence[dict[str, Any]], others: Sequence[Call]) -> dict[str, Any]:
    """The record."""
    twins, opened, paraphrases, allowed, changed = 0, [], 0, 0, []
    read_others = [(call, read(call, STORE)) for call in others]
    for one in sets:
        call = parse(one["call"])
        memory = corrected(call, True)
        for twin in map(parse, one["twins"]):
            done = read(twin, STORE)
            twins += 1
            if decision(twin, done, memory) == "allow":
                opened.append({"correction": one["id"], "twin": twin.arguments})
        for paraphrase in map(parse, one["paraphrases"]):
            paraphrases += 1
            allowed += decision(paraphrase, read(paraphrase, STORE), memory) == "allow"
        if others:
            block = corrected(call, False)
            changed.append(
                sum(decision(other, done, block) != done.verdicts[done.worst].outcome for other, done in read_others)
            )
    return {
        "corrections": len(sets),
        "twins": twins,
        "opened": opened,
        "paraphrases": paraphrases,
        "allowed": allowed,
        "others": len(others),
        "most_changed": max(changed, default=0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", type=Path, default=Path("tests/gate/acts/corrections.jsonl"))
    parser.add_argument("--others", type=Path, action="append", default=[])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ["HOME"] = HOME
    others = [labelled.call for path in options.others for labelled in read_labelled(path)][:OTHERS]
    record = measure([json.loads(line) for line in options.set.read_text().splitlines()], others)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    print(
        f"{record['corrections']} corrections: {len(record['opened'])} of {record['twins']} twins opened,"
        f" {record['allowed']} of {record['paraphrases']} paraphrases allowed; a block changes at most"
        f" {record['most_changed']} of {record['others']:,} other decisions"
    )


if __name__ == "__main__":
    main()
