"""Secrets: planted ones never come out, ordinary text is left alone."""

import base64
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.gate.corpus import corpus
from gradproof.gate.secrets import redact

ALPHANUMERIC = string.ascii_letters + string.digits


def some(length, alphabet=ALPHANUMERIC):
    return st.text(alphabet, min_size=length, max_size=length)


KEYS = st.one_of(
    some(16, string.ascii_uppercase + string.digits).map("AKIA{}".format),
    some(36).map("ghp_{}".format),
    some(60).map("github_pat_{}".format),
    some(24).map("xoxb-1234567890-{}".format),
    some(40).map("sk-{}".format),
    some(40).map("sk-proj-{}".format),
    some(35).map("AIza{}".format),
    some(24).map("sk_live_{}".format),
    some(20).map("glpat-{}".format),
    some(30).map("hf_{}".format),
    st.tuples(some(20), some(40), some(43)).map(lambda parts: "eyJ{}.eyJ{}.{}".format(*parts)),
    st.binary(min_size=32, max_size=48)
    .map(lambda raw: base64.b64encode(raw).decode())
    .filter(lambda key: sum(c.isdigit() for c in key) > 3 and len(set(key)) > 20),
)
PLACES = st.sampled_from(
    (
        "export API={}",
        "curl -H 'X-Api: {}' https://example.com",
        "echo {} > /tmp/a",
        '{{"key": "{}"}}',
        "git clone https://{}@example.com/a.git",
        "{}",
        "login {} now",
    )
)


@given(KEYS, PLACES)
def test_a_planted_key_is_gone(key, place):
    """Not the whole, nor a part worth having."""
    redacted = redact(place.format(key))
    tail = key[-12:]
    assert key not in redacted and tail not in redacted and "<" in redacted


@given(
    some(12),
    st.sampled_from(
        ("password={}", "PASSWORD: {}", '"api_key": "{}"', "--password {}", "--token={}", "DB_SECRET='{}'")
    ),
)
def test_what_is_named_a_secret_is_one(value, place):
    assert value not in redact(f"run {place.format(value)} -v")


@given(some(10), some(10))
def test_passwords_in_addresses(user, password):
    redacted = redact(f"psql postgres://{user}:{password}@db.example.com/app")
    assert f":{password}@" not in redacted and f"{user}:<PASSWORD>@db.example.com/app" in redacted


def test_private_keys_whole_or_cut_off():
    body = "MIIEowIBAAKCAQEAx\n" * 20
    key = f"-----BEGIN RSA PRIVATE KEY-----\n{body}-----END RSA PRIVATE KEY-----"
    assert redact(f"cat <<E\n{key}\nE") == "cat <<E\n<PRIVATE_KEY>\nE"
    assert "MIIE" not in redact(key[:200]) and "MIIE" not in redact(key[200:])


def test_a_secret_access_key():
    """Forty characters, few of them digits, slashes among them; a digest of forty stays."""
    assert redact("aws configure set x wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY") == "aws configure set x <KEY>"
    assert "3f786850" in redact("git show 3f786850e387550fdab836ed7e6dc881de23001b")


def test_mail_addresses():
    assert redact("mail -s hi bob.smith+x@mail.example.co.uk < a") == "mail -s hi <EMAIL> < a"


@given(st.one_of(KEYS, st.text(max_size=80)), st.text(max_size=40))
def test_twice_changes_nothing(text, around):
    once = redact(f"{around} {text} {around}")
    assert redact(once) == once


ORDINARY = (
    "git checkout 3f786850e387550fdab836ed7e6dc881de23001b",
    "sha256sum -c 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "find /usr/local/lib/python3.11/site-packages -name '*.py' -newer setup.cfg",
    "cat /var/lib/docker/containers/config.v2.json | grep -i password",
    "docker run --rm -it -v $PWD:/work ubuntu:22.04 /bin/bash -c 'make -j8 all'",
    "ls -la AndroidManifestBackupConfiguration2.xml.old",
    "echo ThisIsAVeryLongCamelCaseIdentifierName",
    "grep -rn 'token' src/ --include=*.ts",
    "kubectl get pods -n kube-system -o jsonpath='{.items[0].metadata.name}'",
    "passwd root",
    "cp $PathToSomeFolder/T1110.004/src/list.txt /tmp/MyBackupFolder2024/a",
    "ssh-keygen -t ed25519 -f ~/.ssh/id_ed25519",
    "mysql -u root -p database < dump.sql",
    "echo $PASSWORD ${TOKEN} $(cat token)",
    "export TOKEN=$(vault read token)",
    "addcomputer.py -k -no-pass domain/username",
)


@pytest.mark.parametrize("command", ORDINARY)
def test_ordinary_commands_are_left_alone(command):
    """Paths, digests and the word password say what a call does; without them the gate would know less."""
    assert redact(command) == command


def test_the_corpus_is_left_alone():
    """Of made-up commands without secrets hardly any is touched."""
    touched = [line for line in corpus(2000, seed=5) if redact(line) != line]
    assert len(touched) < 40, touched[:5]


STALLING = (
    "a",
    "aB3",
    "x@",
    "a.a@a.",
    "password",
    "password=",
    "eyJ",
    "eyJa.a",
    "-",
    "--pass ",
    "/aB1",
    "sk-",
    "aA",
    "token ",
)


@pytest.mark.parametrize("piece", STALLING)
def test_no_text_stalls_it(piece):
    """At this length a pattern that goes back over its text would take hours."""
    redact(piece * (100_000 // len(piece)))
    redact(piece * (100_000 // len(piece)) + "!")
