"""Scores `diagnose` on a round of the zoo: python tests/zoo/score.py round_5 --seeds 5 --json FILE

A trial is one module, one seed, one format. Where something is wrong in that format, it is detected if the verdict is
bug, overflow, underflow or routing, and rightly so if it is the fault's own category. Where nothing is, such a verdict
is a false alarm, unless the entry says that the thing does happen there. Silence is `noise`, `clean` or `inconclusive`.
"""

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

ROUNDS = tuple(f"round_{number}" for number in range(6))
LOUD = ("bug", "overflow", "underflow", "routing")


def trial(zoo_round, name, seed, device="cpu"):
    """One module and seed through all formats: one record a format."""
    import torch
    from zoo.entry import FORMATS

    from gradproof.diagnosis.diagnose import diagnose

    torch.set_num_threads(1)
    entry = entries(zoo_round)[name]
    torch.manual_seed(seed)
    module, inputs, *reference = entry.make()
    trusted = reference[0] if reference else None
    try:
        diagnosis = diagnose(module, inputs, reference=trusted, precisions=FORMATS, device=device, seed=seed, name=name)
    except Exception as error:  # one that holds tensors of its own runs on no other device
        print(f"{name} seed {seed}: {type(error).__name__}: {error}", file=sys.stderr)
        return []
    records = []
    for p in diagnosis.precisions:
        fault, may = entry.fault.get(p.format, ""), entry.may.get(p.format, frozenset())
        loud = p.verdict in LOUD
        records.append(
            {
                "name": name,
                "seed": seed,
                "format": p.format,
                "fault": fault,
                "verdict": p.verdict,
                "detected": bool(fault) and loud,
                "right": bool(fault) and p.verdict == fault,
                "alarm": not fault and loud and p.verdict not in may,
                "summary": p.summary,
                "verified": diagnosis.verification.status,
                "simulated_only": bool(p.simulated_only),
                "z": max((j.z for j in (*p.parameters, *p.inputs) if j.z == j.z), default=0.0),
            }
        )
    return records


def entries(zoo_round):
    """The entries of a round by name, correct and wrong."""
    from importlib import import_module

    module = import_module(f"zoo.{zoo_round}")
    return {**module.CORRECT, **module.WRONG}


def score(zoo_round, seeds, device="cpu", jobs=1, only=None):
    """All trials, and the rates: by trial, and by module (all of its trials)."""
    wanted = [
        (zoo_round, name, seed, device)
        for name in entries(zoo_round)
        if not only or name in only
        for seed in range(seeds)
    ]
    if jobs == 1:
        recorded = [trial(*arguments) for arguments in wanted]
    else:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            recorded = list(pool.map(trial, *zip(*wanted, strict=True)))
    trials = [record for records in recorded for record in records]
    return {"round": zoo_round, "seeds": seeds, "device": device, **rates(trials), "trials": trials}


def rates(trials):
    """Detection, right category and false alarms."""
    faulty, quiet = [t for t in trials if t["fault"]], [t for t in trials if not t["fault"]]
    modules = sorted({t["name"] for t in faulty})
    correct = sorted({t["name"] for t in trials} - set(modules))

    def share(of, key):
        return sum(t[key] for t in of) / len(of) if of else None

    def whole(key, names, of):
        return sum(all(t[key] for t in of if t["name"] == name) for name in names) / len(names) if names else None

    return {
        "detection": share(faulty, "detected"),
        "right_category": share(faulty, "right"),
        "false_alarms": sum(t["alarm"] for t in quiet),
        "faulty_trials": len(faulty),
        "quiet_trials": len(quiet),
        "wrong_modules": len(modules),
        "correct_modules": len(correct),
        "modules_always_detected": whole("detected", modules, faulty),
        "modules_always_right": whole("right", modules, faulty),
        "modules_with_alarm": sorted({t["name"] for t in quiet if t["alarm"]}),
        "inconclusive": sum(t["verdict"] == "inconclusive" for t in trials),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("round", choices=ROUNDS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--json")
    given = parser.parse_args()
    record = score(given.round, given.seeds, given.device, given.jobs, given.only)
    if given.json:
        Path(given.json).write_text(json.dumps(record, indent=1) + "\n")
    for t in record.pop("trials"):
        if t["alarm"] or (t["fault"] and not t["right"]) or t["verdict"] == "inconclusive":
            wanted = t["fault"] or "noise"
            print(f"{t['name']} seed {t['seed']} {t['format']}: {t['verdict']}, not {wanted}: {t['summary']}")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
