"""Redaction removes secrets and leaves the rest of a text as it is.

In the tables next to this file, « and » enclose the secrets; everything else must come out unchanged. A · is dropped
when a table is read. It keeps secret scanners from reporting the made-up tokens.
"""

import base64
import os
import random
import re
import stat
import string
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gradproof.gate import MISSING_EXTRA, secret_rules, secret_spans, secrets
from gradproof.gate.corpus import corpus
from gradproof.gate.secret_rules import looks_random, named
from gradproof.gate.secrets import Redactor, redact, redact_arguments, redact_value, redact_words, store_key

HERE = Path(__file__).parent
PLACEHOLDER = r"<[a-z-]+(?::@[A-Za-z0-9.-]+)?#[0-9a-f]{16}>"
COMMANDS = (HERE / "secret_commands.txt").read_text(encoding="utf-8").replace("·", "").splitlines()
TEXTS = (HERE / "secret_texts.txt").read_text(encoding="utf-8").replace("·", "").rstrip("\n").split("\n====\n")
HARMLESS = (HERE / "harmless_commands.txt").read_text(encoding="utf-8").splitlines()
ALPHANUMERIC = string.ascii_letters + string.digits


# secrets that people write


@pytest.mark.parametrize("line", COMMANDS + TEXTS)
def test_the_secret_goes_and_the_rest_stays(line):
    """Hosts, users, paths and options are what is decided on."""
    parts = re.split("[«»]", line)
    parts += [""] * (len(parts) % 2 == 0)  # a secret that nothing closes
    redacted = redact("".join(parts))
    assert re.fullmatch(PLACEHOLDER.join(map(re.escape, parts[::2])), redacted), redacted
    assert redact(redacted) == redacted


def test_the_tables_hold_enough():
    assert len(COMMANDS) >= 150 and len(TEXTS) >= 100 and len(HARMLESS) >= 200


def test_private_keys_whole_or_cut_off():
    body = "MIIEowIBAAKCAQEAx\n" * 20
    key = f"-----BEGIN RSA PRIVATE KEY-----\n{body}-----END RSA PRIVATE KEY-----"
    assert re.fullmatch("cat <<E\n<private-key#[0-9a-f]{16}>\nE", redact(f"cat <<E\n{key}\nE"))
    assert "MIIE" not in redact(key[:200]) and "MIIE" not in redact(key[200:])
    assert "MIIE" not in redact(key.replace("\n", "\\n")) and redact("grep -c 'BEGIN RSA PRIVATE KEY' a").endswith(" a")


def test_public_keys_and_certificates_stay():
    body = base64.encodebytes(random.Random(1).randbytes(300)).decode()
    certificate = f"-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----"
    assert redact(certificate) == certificate


def test_a_secret_access_key():
    """Forty characters, few of them digits, slashes among them; a digest of forty stays."""
    assert "MDENG" not in redact("aws configure set x wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    assert "3f786850" in redact("git show 3f786850e387550fdab836ed7e6dc881de23001b")


def test_mail_addresses_keep_their_domain():
    redacted = redact("mail -s hi bob.smith+x@mail.example.co.uk < a")
    assert re.fullmatch(r"mail -s hi <email:@mail\.example\.co\.uk#[0-9a-f]{16}> < a", redacted)
    assert redact("scp customers.db x@evil.com:") == "scp customers.db x@evil.com:"


@pytest.mark.parametrize(
    "number",
    ("4111111111111111", "5555 5555 5555 4444", "3782-822463-10005", "6011111111111117", "3530111333300000"),
)
def test_card_numbers_pass_the_check(number):
    """One digit more, and it is some number."""
    assert redact(f"pay {number} now").startswith("pay <card#")
    changed = number[:-1] + str((int(number[-1]) + 1) % 10)
    assert redact(f"pay {changed} now") == f"pay {changed} now"


# what is no secret


@pytest.mark.parametrize("line", HARMLESS)
def test_ordinary_lines_are_left_alone(line):
    """Paths, digests and the word password say what a call does."""
    assert redact(line) == line


def harmless(count, seed):
    """Git hashes, UUIDs, digests, and options that only look like those of passwords."""
    rng = random.Random(seed)

    def digits(length):
        return "".join(rng.choices("0123456789abcdef", k=length))

    def word():
        return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 9)))

    def uuid():
        return "-".join(map(digits, (8, 4, 4, 4, 12)))

    makers = (
        lambda: f"git {rng.choice(('show', 'checkout', 'revert', 'cherry-pick', 'log -p'))} {digits(40)}",
        lambda: f"git diff {digits(7)}..{digits(12)} -- src/{word()}.py",
        lambda: f"git push -u {word()} {word()}/{word()}",
        lambda: f"git reset --hard {digits(40)} && git branch -D {word()}",
        lambda: f"curl https://api.example.com/{word()}/{uuid()}",
        lambda: f"kubectl delete pod {word()}-{digits(10)}-{word()[:5]} -n {word()}",
        lambda: f'{{"id": "{uuid()}", "parent": "{uuid().upper()}"}}',
        lambda: f"echo '{digits(64)}  {word()}.tar.gz' | sha256sum -c",
        lambda: f"md5sum {word()}.iso # {digits(32)}",
        lambda: f"docker pull registry.example.com/{word()}@sha256:{digits(64)}",
        lambda: f"docker run -u {rng.randint(0, 9999)}:{rng.randint(0, 9999)} -p {rng.randint(1, 65535)}:80 {word()}",
        lambda: f"docker run --rm -u {word()} --name {word()} {word()}:{rng.randint(1, 9)}.{rng.randint(0, 20)}",
        lambda: f"pip install {word()}==1.0 --hash=sha256:{digits(64)}",
        lambda: f'"integrity": "sha512-{base64.b64encode(rng.randbytes(64)).decode()}"',
        lambda: f"sha512: {digits(128)}",
        lambda: f"mkdir -p {word()}/{word()}/{word()}{rng.randint(0, 99)}",
        lambda: f"mkdir -p /srv/{word()} && cp -p {word()}.txt /srv/{word()}/",
        lambda: f"ssh -p {rng.randint(1, 65535)} {word()}@{word()}.example.com {word()}",
        lambda: f"{rng.choice(('id', 'pgrep', 'ps', 'crontab -l', 'lsof'))} -u {word()}",
        lambda: f"sort -u {word()}.csv | uniq -c",
        lambda: f"sudo -u {word()} {word()} --{word()}",
        lambda: f"mysql -u {word()} -h {word()}.example.com {word()} < {word()}.sql",
        lambda: f"curl -u {word()} https://{word()}.example.com/{word()}",
        lambda: f"useradd -u {rng.randint(1000, 9999)} -m {word()}",
        lambda: f"nmap -p {rng.randint(1, 65535)} 10.{rng.randint(0, 255)}.0.0/16",
        lambda: f"etag: {digits(32)}; commit {digits(40)}",
    )
    return [rng.choice(makers)() for _ in range(count)]


def test_hashes_identifiers_and_options_are_left_alone():
    changed = [line for line in harmless(1000, seed=3) if redact(line) != line]
    assert not changed, changed[:5]


def test_the_corpus_is_left_alone():
    """Of made-up commands hardly any names a secret."""
    touched = [line for line in corpus(2000, seed=5) if redact(line) != line]
    assert len(touched) < 20, touched[:5]


# planted secrets


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
    .map(lambda raw: base64.b64encode(raw).decode().strip("="))
    .filter(lambda key: looks_random(key.encode()) and "+" not in key),
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
        "bash -c \"run '{}'\"",
        "a\n{}\nb",
    )
)


@given(KEYS, PLACES)
def test_a_planted_key_is_gone(key, place):
    """Not the whole, nor a part worth having."""
    redacted = redact(place.format(key))
    assert key not in redacted and key[-12:] not in redacted and re.search(PLACEHOLDER, redacted)


NAMED = (
    "password={}",
    "PASSWORD: {}",
    '"api_key": "{}"',
    "--password {}",
    "--token={}",
    "DB_SECRET='{}'",
    "MYSQL_PWD={}",
    "'client_secret' => '{}'",
    'dbPassword = "{}"',
    "machine h login u password {}",
    "IDENTIFIED BY '{}'",
    "https://u:{}@example.com/",
)


@given(some(12), st.sampled_from(NAMED))
def test_what_is_named_a_secret_is_one(value, place):
    assert value not in redact(f"run {place.format(value)} -v")


OPTIONS = (
    "mysql -p{}",
    "mysql -u root -p'{}' db",
    "curl -u bob:{} https://example.com",
    "sshpass -p {} ssh host",
    "docker login -u bob -p {} example.com",
    "redis-cli -a {} ping",
    "zip -P {} a.zip b",
    "echo {} | sudo -S id",
    "echo bob:{} | chpasswd",
    "htpasswd -b f bob {}",
    "gpg --passphrase {} -d a",
    "ldapsearch -w {} -b dc=x",
    "7z a -p{} a.7z b",
)
WRAPPERS = (
    "{}",
    "sudo {}",
    "cd /srv && {}",
    "ssh host '{}'",
    'bash -c "{}"',
    "{} > /dev/null 2>&1",
    "x | {} | y",
    "({})",
)


@given(some(10), st.sampled_from(OPTIONS), st.sampled_from(WRAPPERS))
def test_what_an_option_takes_is_a_secret_wherever_the_command_stands(value, place, wrapper):
    assume("'" not in wrapper or "'" not in place)
    assert value not in redact(wrapper.format(place.format(value)))


@given(some(10), some(10))
def test_passwords_in_addresses(user, password):
    redacted = redact(f"psql postgres://{user}:{password}@db.example.com/app")
    assert f":{password}@" not in redacted
    assert re.fullmatch(f"psql postgres://{user}:{PLACEHOLDER}@db.example.com/app", redacted)


# placeholders


def test_equal_secrets_have_equal_placeholders():
    redacted = redact('mysql -phunter2; export PGPASSWORD="hunter2"; mysql -phunter3', b"k")
    first, second, third = re.findall("#([0-9a-f]{16})>", redacted)
    assert first == second != third


def test_without_the_key_nobody_can_try_out_a_secret():
    command = "mysql -phunter2"
    assert len({redact(command), redact(command, b"a"), redact(command, b"b"), redact(command, os.urandom(32))}) == 4
    assert redact(command, b"a") == redact(command, b"a")


@given(st.one_of(KEYS, st.text(max_size=80), st.sampled_from(COMMANDS)), st.text(max_size=40))
def test_twice_changes_nothing(text, around):
    once = redact(f"{around} {text} {around}", b"first")
    assert redact(once) == redact(once, b"second") == once


PIECES = (
    "password",
    "=",
    ":",
    "'",
    '"',
    " ",
    "\n",
    "\\",
    "curl -u a:b ",
    "mysql -p",
    "x@y.com",
    "<",
    "#",
    "--token ",
    "|",
)


@given(
    st.lists(
        st.sampled_from((*PIECES, "echo ", "sudo -S", "key", "${", "}", "4111111111111111", "é", "\ud800")), max_size=30
    )
)
def test_broken_shell_is_read_to_its_end(pieces):
    once = redact("".join(pieces))
    assert redact(once) == once


def test_a_text_that_never_settles_is_withheld(monkeypatch):
    """Nothing of it is stored rather than half of a secret."""
    monkeypatch.setattr(secrets, "MOST_ROUNDS", 1)
    assert re.fullmatch("<text#[0-9a-f]{16}>", redact("mysql -phunter2"))


@pytest.mark.parametrize(
    "text", ("", "\ud800", "password=\udc80é", "\x00", "password=\x00a", "é" * 50, "пароль: \ud83d")
)
def test_any_text_can_be_read(text):
    assert isinstance(redact(text), str)


# arguments


def test_the_names_of_arguments_count():
    redacted = redact_arguments(
        "login",
        {
            "user": "bob",
            "password": "correct horse",
            "pin": 1234,
            "card_number": 4111111111111111,
            "options": {
                "api_key": "abc123",
                "max_tokens": 5,
                "headers": {"Authorization": "Bearer abcd", "Accept": "*"},
            },
            "env": [{"name": "DB_PASSWORD", "value": "abc"}, {"name": "HOST", "value": "h"}],
            "retries": [3, 1.5, True, None],
        },
    )
    assert [redacted[name][:5] for name in ("password", "pin", "card_number")] == ["<pass", "<pin#", "<card"]
    assert redacted["options"]["api_key"].startswith("<key#") and redacted["options"]["max_tokens"] == 5
    assert redacted["options"]["headers"]["Authorization"].startswith("Bearer <key#")
    assert redacted["env"][0]["value"].startswith("<password#") and redacted["env"][1]["value"] == "h"
    assert redacted["user"] == "bob" and redacted["retries"] == [3, 1.5, True, None]
    assert redact_arguments("login", redacted) == redacted


def test_a_field_is_named_by_its_neighbour_or_its_tool():
    assert redact_arguments("type", {"element": "Password field", "text": "hunter2"})["text"].startswith("<password#")
    assert redact_arguments("type", {"element": "User name", "text": "bob"})["text"] == "bob"
    assert redact_arguments("put_secret_value", {"name": "db", "value": "hunter2"})["value"].startswith("<password#")


def test_a_command_of_words():
    words = redact_words(["curl", "-u", "bob:pw pw", "https://example.com", "--token", "abcdef"])
    assert words[2].startswith("bob:<password#") and words[2].endswith(">") and words[5].startswith("<key#")
    assert words[:2] + words[3:5] == ["curl", "-u", "https://example.com", "--token"]
    command = redact_arguments("run", {"command": ["mysql", "-phunter2", "-h", "db"]})["command"]
    assert command[0] == "mysql" and command[1].startswith("-p<password#") and command[2:] == ["-h", "db"]


@pytest.mark.parametrize(
    ("name", "value"),
    (
        ("password", "$PASSWORD"),
        ("password", ""),
        ("password", "<password#0123456789abcdef>"),
        ("key", "Enter"),
        ("file_path", "/srv/password.txt"),
        ("secretName", "db"),
        ("token_count", "512"),
        ("authorization", "Bearer $TOKEN"),
    ),
)
def test_values_that_stay(name, value):
    assert redact_value(name, value) == value


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.sampled_from(COMMANDS)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(st.text(max_size=8), st.sampled_from(("password", "name", "value", "pin", "command", "a@b.com"))),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


@given(st.text(max_size=8), st.dictionaries(st.text(max_size=8), JSON, max_size=4))
def test_any_arguments_can_be_read_and_twice_changes_nothing(tool, arguments):
    once = redact_arguments(tool, arguments)
    assert repr(redact_arguments(tool, once)) == repr(once)  # repr: nan is not equal to itself


def test_deep_and_odd_arguments():
    deep: dict = {}
    inner = deep
    for _ in range(500):
        inner["a"] = inner = {}
    assert "<text#" in str(redact_arguments("x", deep))
    assert redact_arguments("x", {"": "y", "a@b.com": ()}).popitem()[0].startswith("<email:@b.com#")


@pytest.mark.parametrize(
    "name",
    ("PGPASSWORD", "dbPassword", "X-Api-Key", "AWS_SECRET_ACCESS_KEY", "_authToken", "a.pwd", "PASSWORD2", "new_token"),
)
def test_names_of_secrets(name):
    assert named(name.encode()) is not None


@pytest.mark.parametrize(
    "name", ("tokenizer", "max_tokens", "cache-key", "password_file", "NOPASSWD", "compass", "keys")
)
def test_names_of_other_things(name):
    assert named(name.encode()) is None


# the key of a store


def test_the_key_is_made_once_and_only_its_owner_reads_it(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: store_key(tmp_path), range(32)))
    assert len(keys) == 1 and len(keys.pop()) == 32
    assert [path.name for path in tmp_path.iterdir()] == ["redaction.key"]
    assert stat.S_IMODE((tmp_path / "redaction.key").stat().st_mode) == 0o600


def test_a_damaged_key_is_said_so(tmp_path):
    (tmp_path / "redaction.key").write_bytes(b"short")
    with pytest.raises(ValueError, match="must hold 32 bytes, not 5"):
        store_key(tmp_path)


def test_without_re2_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "re2", None)
    secret_rules.rules.cache_clear()
    try:
        with pytest.raises(ValueError, match=re.escape(MISSING_EXTRA)):
            redact("x y")
    finally:
        secret_rules.rules.cache_clear()


# time


STALLING = (
    "a",
    "aB3",
    "x@",
    "a.a@a.",
    "password",
    "password=",
    "key=",
    "key=a ",
    "eyJ",
    "eyJa.a",
    "-eyJ",
    "-",
    "--pass ",
    "/aB1",
    "sk-",
    "-sk-",
    "ghp_",
    "aA",
    "token ",
    "curl -u a:b ",
    "mysql ",
    "'",
    '"',
    "\"curl '",
    'curl "',
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN A-----Version:",
    "://a:b@",
    "1234 ",
    "sudo -S <<A\n",
    "<key#0123456789abcdef>",
    "$6$",
    "identified by 'a' ",
    "\\",
    '\\"',
    'key="',
    "<",
    "echo a;",
    "é",
    "password:\n",
    "aB3dE6gH9jK2mN5pQ8sT1vW4yZ ",
)


@pytest.mark.parametrize("piece", STALLING)
def test_no_text_stalls_it(piece):
    """At this length a pattern that goes back over its text would take minutes."""
    redact(piece * (200_000 // len(piece)))
    redact(piece * (200_000 // len(piece)) + "!")


@pytest.mark.parametrize("piece", ("password=a ", "mysql -pa ", "echo a | sudo -S b\n", "x@y.com ", "sk-a ", "curl '"))
def test_the_work_is_bounded(piece, monkeypatch):
    """Four times the text takes no more candidates, once there are too many: what follows is withheld."""
    judged = []
    afford = secret_spans.Scan.afford
    monkeypatch.setattr(secret_spans.Scan, "afford", lambda *scan: judged.append(1) or afford(*scan))
    counts = []
    for length in (400_000, 1_600_000):
        judged.clear()
        assert "<text#" in redact(piece * (length // len(piece)))
        counts.append(len(judged))
    assert counts[0] == counts[1] <= 3 * secrets.MOST_CANDIDATES / 0.1


def test_what_lies_before_too_many_candidates_is_read():
    for many in ("x@y.com ", "; mysql a", "password=a "):
        redacted = redact("mysql -phunter2 -h db.example.com; " + many * 100_000)
        assert re.match(f"mysql -p{PLACEHOLDER} -h db.example.com; .*<text#[0-9a-f]{{16}}>$", redacted), redacted[:200]


def test_no_stored_text_can_be_guessed_without_the_key():
    """Placeholders of a call's and of its acts' texts are under the store's key; a list of words is redacted as a
    command."""
    from gradproof.gate import calls
    from gradproof.gate.reading import act_texts, read

    call = calls.Call("Bash", {"command": ["mysql", "-u", "root", "-phunter2", "-h", "db.example.com"]})
    plain, keyed = calls.text(call), calls.text(call, b"k" * 32)
    assert "hunter2" not in plain + keyed and plain != keyed and "db.example.com" in keyed
    texts = act_texts(call, read(call).acts, b"k" * 32)
    assert texts and all("hunter2" not in text for text in texts)
    shown = calls.text(calls.Call("Bash", {"command": "curl -u bob:hunter2 https://x.example"}), b"k" * 32)
    unkeyed = calls.text(calls.Call("Bash", {"command": "curl -u bob:hunter2 https://x.example"}))
    assert shown != unkeyed


def test_the_texts_of_a_call_are_redacted_together():
    """Each as alone; beyond the budget all of a text is withheld, and equal texts stay equal."""
    texts = [f"mysql -phunter{i} -h db{i}.example.com" for i in range(400)]
    redactor = Redactor(b"key", most=300)
    done = [redactor.text(text) for text in texts]
    assert done[:20] == [redact(text, b"key") for text in texts[:20]]
    assert not any(f"hunter{i}" in text for i, text in enumerate(done))
    assert re.fullmatch(r"<text#[0-9a-f]{16}>", done[-1]) and len(set(done)) == len(texts)
    assert done[-1] == Redactor(b"key", most=0).text(texts[-1]) and redactor.text("rm") == "rm"
    assert redactor.value("password", "hunter2") == redact_value("password", "hunter2", b"key")


def test_of_a_long_text_of_a_call_the_beginning_is_kept():
    long = "ls -la; " * 5000
    kept = Redactor(b"key").text(long)
    assert kept.startswith("ls -la; ls -la") and kept.endswith(">") and len(kept) < 5000
    assert kept != Redactor(b"key").text(long + "x")
    token = "ghp_" + "a1B2c3D4e5" * 4
    for at in range(4000, 4200, 7):
        assert "a1B2c3D4e5" not in Redactor(b"key").text("x " * (at // 2) + token + " y" * 9000)
