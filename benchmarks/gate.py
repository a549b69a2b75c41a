"""One correction, its paraphrases and everybody else, on a real gate: how soon it holds, and what else it changes.

    python benchmarks/gate.py --store DIR --data FILE.jsonl [--data FILE.jsonl …] [--corrections N] [--written FILE]
                              [--json FILE]

For each of N calls that the gate blocks, or allows, someone says false_block, or false_allow, in a process of its own,
as `gradproof gate feedback` does it. Measured: seconds until a decider that was running all the while decides the call
and ten mechanical paraphrases (other names, another order of flags, other quotes and spaces) the new way, and how many
of 1,000 other decisions changed. The store is copied first, and the copy thrown away.

`--written` takes calls and paraphrases that a person wrote instead, one set a line: `gate_paraphrases.jsonl` and
`gate_paraphrases_2.jsonl`, whatever the gate says of them beforehand (`already` counts those that it decides so without
the correction).
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from gradproof.gate.calls import Call, parse
from gradproof.gate.decider import Decider
from gradproof.gate.skeleton import ASSIGNMENT, KEYWORDS, SUBCOMMANDS, WRAPPERS
from gradproof.gate.store import Store

OTHERS = 1000
OPERATORS = ("|", "||", "&&", ";", "&")
WORD = re.compile(r"""'[^']*'|"[^"]*"|\S+""")
NAME = re.compile(r"^(?:\./)?[A-Za-z][\w-]{2,}(?:\.\w{1,4})?$")
NAMES = ("alpha", "beta", "gamma", "delta", "notes", "report", "draft", "sample", "result", "archive")


def paraphrases(command: str, draws: random.Random) -> list[str]:
    """Ten ways to say it with other names, flags in another order, other quotes and spaces; first lines alone."""
    return [_paraphrase(command, draws, way) for way in range(10)]


def _paraphrase(command: str, draws: random.Random, way: int) -> str:
    words = WORD.findall(command)
    plain = [i for i, word in enumerate(words[1:], 1) if NAME.match(word) and not _runs([*words[:i], word])]
    if words and words[0].rsplit("/", 1)[-1] in SUBCOMMANDS:
        plain = plain[1:]
    if way % 2 == 0 and plain:  # another name for one file or word
        i = draws.choice(plain)
        ending = Path(words[i]).suffix
        words[i] = draws.choice(NAMES) + ending
    if way % 3 == 1:  # quotes around plain words
        quote = draws.choice("'\"")
        words = [f"{quote}{word}{quote}" if i in plain else word for i, word in enumerate(words)]
    if way % 3 == 2:  # -xyz as -x -y -z, or two flags changed round
        words = [
            " ".join(f"-{letter}" for letter in word[1:]) if re.fullmatch(r"-[a-zA-Z]{2,3}", word) else word
            for word in words
        ]
    flags = [i for i, word in enumerate(words) if re.fullmatch(r"-[a-zA-Z]|--[a-z-]+", word)]
    if way % 5 == 3 and len(flags) > 1 and flags[1] == flags[0] + 1:
        a, b = flags[:2]
        words[a], words[b] = words[b], words[a]
    return ("  " if way % 4 == 0 else " ").join(words)


def _runs(words: list[str]) -> bool:
    """Whether the last of these is the shell's own word or a program: behind an operator, or what runs another."""
    *before, own = words
    last = next((word for word in reversed(before) if not word.startswith("-")), "|")
    leads = last in {*OPERATORS, *WRAPPERS, *KEYWORDS} or last[-1] == ";" or ASSIGNMENT.match(last) is not None
    return own in KEYWORDS or leads or before[-1] == "-exec"


def correct(decider: Decider, folder: Path, meant: list[Call], kind: str, others: list[Call]) -> dict[str, Any]:
    """One correction of the first of `meant`: seconds until it and its paraphrases are decided so, and which others
    changed."""
    want = "allow" if kind == "false_block" else "block"
    before = [decider.peek(other).decision for other in others]
    already = sum(decider.peek(call).decision == want for call in meant)
    answer = decider.decide(meant[0])
    decider.flush()
    started = time.perf_counter()
    said = [sys.executable, "-m", "gradproof", "gate", "feedback", answer.id, kind, "--store", str(folder)]
    subprocess.run(said, check=True, capture_output=True)
    acknowledged = time.perf_counter()
    held: list[bool] = []
    while time.perf_counter() - acknowledged < 5 and not (held and all(held)):
        held = [decider.peek(call).decision == want for call in meant]
    done = time.perf_counter()
    changed = sum(decider.peek(other).decision != old for other, old in zip(others, before, strict=True))
    return {
        "kind": kind,
        "call": shown(meant[0]),
        "already": already,
        "held": sum(held),
        "of": len(meant),
        "missed": [shown(call) for call, follows in zip(meant, held, strict=True) if not follows],
        "seconds": done - acknowledged,
        "with_feedback": done - started,
        "changed": changed,
        "others": len(others),
    }


def shown(call: Call) -> str:
    return call.arguments["command"] if call.tool == "Bash" else f"{call.tool} {json.dumps(dict(call.arguments))}"


def found_mistakes(decider: Decider, calls: list[Call], most: int) -> Iterator[tuple[str, list[Call]]]:
    """Calls of one line that the model blocks, then some that it allows, each with mechanical paraphrases; what a rule
    decides, no correction changes."""
    for kind in ("false_block", "false_allow"):
        wrong = "block" if kind == "false_block" else "allow"
        short = (call for call in calls if len(call.arguments["command"].splitlines()) == 1)
        judged = ((call, decider.peek(call)) for call in short)
        mistaken = (call for call, said in judged if said.decision == wrong and not said.reason.startswith("rule"))
        chosen = list(islice(mistaken, most))
        for seed, call in enumerate(chosen):
            said = paraphrases(call.arguments["command"], random.Random(seed))
            yield kind, [call, *(Call("Bash", {"command": paraphrase}) for paraphrase in said)]


def written_sets(path: Path) -> Iterator[tuple[str, list[Call]]]:
    """One set a line: {"kind", "call", "paraphrases": [{"way", "call"}, …]}."""
    for line in path.read_text(encoding="utf-8").splitlines():
        written = json.loads(line)
        yield written["kind"], [parse(written["call"]), *(parse(said["call"]) for said in written["paraphrases"])]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--data", type=Path, action="append", required=True)
    parser.add_argument("--corrections", type=int, default=10)
    parser.add_argument("--written", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    draws = random.Random(0)
    lines = [line for file in options.data for line in file.read_text(encoding="utf-8").splitlines()]
    calls = [
        parse({"command": json.loads(line)["command"]}) for line in draws.sample(lines, min(len(lines), 4 * OTHERS))
    ]
    with tempfile.TemporaryDirectory() as aside:
        folder = Path(aside) / "gate"
        shutil.copytree(options.store, folder)
        store = Store(folder)
        decider = Decider(store, trusted=True)
        written = written_sets(options.written) if options.written else None
        corrections = []
        for kind, meant in written or found_mistakes(decider, calls, options.corrections):
            others = [other for other in draws.sample(calls, min(len(calls), OTHERS + 1)) if other != meant[0]][:OTHERS]
            corrections.append(correct(decider, folder, meant, kind, others))
            print(json.dumps(corrections[-1]), flush=True)
        decider.close()
        store.close()
    show(corrections)
    if options.json:
        options.json.write_text(json.dumps({"corrections": corrections}, indent=1) + "\n")


def show(corrections: list[dict[str, Any]]) -> None:
    for kind in ("false_block", "false_allow"):
        own = [correction for correction in corrections if correction["kind"] == kind]
        if own:
            held, of, already, changed, others = (
                sum(correction[name] for correction in own) for name in ("held", "of", "already", "changed", "others")
            )
            seconds = [correction["seconds"] for correction in own]
            print(
                f"{kind}: {len(own)} corrections; {held} of {of} calls and paraphrases follow ({already} were decided"
                f" so before), the last after {max(seconds):.2f} s (median {median(seconds):.2f} s); {changed} of"
                f" {others:,} other decisions changed, {max(correction['changed'] for correction in own)} at most"
            )


if __name__ == "__main__":
    main()
