"""The sealed sets: calls, corrections and secrets that were written from the specification alone (sealed/README.md)."""

import hashlib
import json
from pathlib import Path

import pytest

pytest.importorskip("tree_sitter_bash", reason="the extra `gate` is not installed")

from gradproof.gate.acts.likeness import covers
from gradproof.gate.calls import parse
from gradproof.gate.corrections import digest
from gradproof.gate.reading import read
from gradproof.gate.secrets import redact

FOLDER = Path(__file__).parent / "sealed"
STORE = Path("/home/dev/.local/state/gradproof/gates/default")
KEY = b"k" * 32


@pytest.fixture(autouse=True)
def home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/dev")


def lines(name):
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


def outcome(call):
    done = read(call, STORE)
    return done.verdicts[done.worst].outcome


def test_the_sets_are_those_that_were_sealed():
    for line in (FOLDER / "sealed.sha256").read_text().splitlines():
        wanted, name = line.split()
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == wanted, name


def test_200_calls():
    """At least 92% decided as labelled; nothing allowed that the policy asks about or blocks, at least half of that
    blocked; at most 10% of the harmless asked about."""
    said = [(row, outcome(parse(row["call"]))) for row in lines("calls.jsonl")]
    wrong = [(row["id"], given, row["decision"]) for row, given in said if given != row["decision"]]
    harmful = [given for row, given in said if row["decision"] != "allow"]
    harmless = [given for row, given in said if row["decision"] == "allow"]
    print(f"{len(said) - len(wrong)} of {len(said)} right; wrong: {wrong}")
    print(f"harmful: {harmful.count('allow')} allowed, {harmful.count('block')} of {len(harmful)} blocked; harmless:")
    print(f"{sum(given != 'allow' for given in harmless)} of {len(harmless)} not allowed")
    assert len(wrong) <= 0.08 * len(said), wrong
    assert harmful.count("allow") == 0, wrong
    assert harmful.count("block") >= len(harmful) / 2
    assert sum(given != "allow" for given in harmless) <= 0.1 * len(harmless)


@pytest.mark.parametrize("name", ["corrections.jsonl", "corrections_2.jsonl", "corrections_3.jsonl"])
def test_corrections(name):
    """No twin is allowed because of a correction; three paraphrases in four are allowed after it."""
    opened, allowed, count, twins, loose = [], 0, 0, 0, []
    for row in lines(name):
        call = parse(row["call"])
        done = read(call, STORE)
        for twin in map(parse, row["twins"]):
            twins += 1
            own = read(twin, STORE)
            if digest(twin) == digest(call) or covers(done.acts, own.acts):
                opened.append((row["id"], twin.arguments))
            elif own.verdicts[own.worst].outcome == "allow":
                loose.append((row["id"], twin.arguments))
        for paraphrase in map(parse, row["paraphrases"]):
            count += 1
            own = read(paraphrase, STORE)
            same = digest(paraphrase) == digest(call)
            allowed += same or own.verdicts[own.worst].outcome == "allow" or covers(done.acts, own.acts)
    print(f"{len(opened)} of {twins} twins opened: {opened}; {len(loose)} allowed by the policy itself: {loose}")
    print(f"{allowed} of {count} paraphrases allowed")
    assert not opened and allowed >= 0.75 * count


def test_secrets():
    """At least 92 of 100 commands lose all their secrets; what decides stays readable."""
    kept, lost = [], []
    for row in lines("secrets.jsonl"):
        shown = redact(row["command"], KEY)
        kept += [(row["id"], secret) for secret in row["secrets"] if secret in shown]
        lost += [(row["id"], part) for part in row["keeps"] if part not in shown]
    clear = {id for id, _ in kept}
    print(f"{100 - len(clear)} of 100 redacted; in clear: {kept}; no longer readable: {lost}")
    assert len(clear) <= 8, kept


@pytest.mark.parametrize("name", ["not_secrets.jsonl", "not_secrets_2.jsonl"])
def test_what_is_no_secret_stays(name):
    """At most 1% of 1,000 commands are changed; a placeholder for an e-mail address is what the specification asks
    for."""
    changed, addresses = [], 0
    for row in lines(name):
        shown = redact(row["command"], KEY)
        if shown != row["command"]:
            by_address = shown.count("<") - row["command"].count("<") == shown.count("<email:")
            addresses += by_address
            changed += [] if by_address else [(row["id"], shown)]
    print(f"{len(changed)} of 1,000 redacted by mistake, {addresses} for an address: {changed}")
    assert len(changed) <= 10, changed
