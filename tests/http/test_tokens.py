"""Tokens: told once, kept as hashes, known by every process at once."""

import json
import stat
from multiprocessing import get_context

import pytest

from gradproof.http.tokens import Tokens

ROLES = ("agent", "admin")


@pytest.fixture
def tokens(tmp_path):
    return Tokens(tmp_path / "tokens.json", ROLES, ("unix",))


def test_a_token_is_found_by_its_secret_alone(tokens):
    ann, bob = tokens.add("ann", "admin"), tokens.add("bob", "agent")
    assert (tokens.find(ann).name, tokens.find(ann).role, tokens.find(bob).name) == ("ann", "admin", "bob")
    secret = ann.split("_", 2)[2]
    wrong = ["", "gp", "gp_ann", "gp_ann_", "gp__", secret, f"gp_bob_{secret}", f"xx_ann_{secret}", ann[:-1], ann + "A"]
    wrong += [ann.upper(), f" {ann}", "gp_ann_\udcff", "gp_nobody_", "gp_nobody_x", "é" * 1000]
    assert [tokens.find(token) for token in wrong] == [None] * len(wrong)


def test_only_hashes_are_kept(tokens):
    secret = tokens.add("ann", "admin").split("_", 2)[2]
    text = tokens.path.read_text()
    assert secret not in text and len(secret) >= 43 and "digest" in text
    assert stat.S_IMODE(tokens.path.stat().st_mode) == 0o600
    assert "digest" not in tokens.all()[0].plain()


def test_another_process_sees_changes_at_once(tokens):
    other = Tokens(tokens.path, ROLES)
    ann = tokens.add("ann", "admin")
    assert other.find(ann)
    other.revoke("ann")
    assert tokens.find(ann) is None
    again = tokens.add("ann", "agent")
    assert other.find(ann) is None and other.find(again).role == "agent"


@pytest.mark.parametrize("name", ["", "Ann", "a b", "a_b", "../x", "a:b", "unix", "x" * 65, "ann\n", "é", "-a"])
def test_names_that_are_none(tokens, name):
    """A colon would let a token own what another one's agent did; a line break would forge a log line."""
    with pytest.raises(ValueError, match="a token's name"):
        tokens.add(name, "agent")


def test_what_cannot_be_changed_says_why(tokens):
    tokens.add("ann", "admin")
    for change, says in (
        (lambda: tokens.add("ann", "agent"), "already"),
        (lambda: tokens.add("bob", "root"), "the roles are agent, admin"),
        (lambda: tokens.revoke("bob"), "there is no token 'bob'"),
    ):
        with pytest.raises(ValueError, match=says):
            change()


def test_a_file_that_makes_no_sense_lets_nobody_in(tokens):
    ann = tokens.add("ann", "admin")
    tokens.path.write_text("[{]")
    for _ in range(2):
        with pytest.raises(ValueError, match="cannot be read"):
            tokens.find(ann)


def _add(path, name):
    Tokens(path, ROLES).add(name, "agent")


def test_two_who_add_at_once_both_count(tokens):
    context = get_context("fork")
    workers = [context.Process(target=_add, args=(tokens.path, f"t{i}")) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(json.loads(tokens.path.read_text())) == 8
