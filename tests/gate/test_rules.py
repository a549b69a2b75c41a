"""Rules: matched on what a call does, however it is written; a wrong file is one sentence."""

import pytest
from made_calls import bash

from gradproof.gate.acts.paths import Surroundings
from gradproof.gate.acts.tools import read_call
from gradproof.gate.calls import Call
from gradproof.gate.rules import DEFAULT, Rules

AROUND = Surroundings.of("/work/app", "/home/dev")


@pytest.fixture
def rules(tmp_path):
    def read(text):
        (tmp_path / "rules.toml").write_text(text)
        return Rules.read(tmp_path / "rules.toml")

    return read


def verdicts(rules, call):
    call = bash(call) if isinstance(call, str) else call
    acts = read_call(call.tool, call.arguments, AROUND)
    found = [rules.judge(act, call.tool, call.arguments) for act in acts]
    return {rule.effect if rule else None for rule in found}


def test_the_default_file_has_no_rule(rules):
    assert rules(DEFAULT).rules == []


@pytest.mark.parametrize(
    "command",
    [
        *("git push", "sudo git push origin x", "make && git  push -f", "(git push)", "env A=b git push", "'git' push"),
        *("sh -c 'git push'", "echo x | xargs -I{} git push {}", "/usr/bin/git push", "if true; then git push; fi"),
    ],
)
def test_a_deny_finds_an_act_by_whatever_wrapper(rules, command):
    assert "deny" in verdicts(rules('[[deny]]\nprogram = "git"\nverb = "push"'), command)


def test_a_deny_of_one_program_leaves_the_others(rules):
    denying = rules('[[deny]]\nprogram = "git"\nverb = "push"')
    for command in ("git status", "echo git push", "grep 'git push' README.md"):
        assert verdicts(denying, command) == {None}


def test_an_allow_speaks_for_its_acts_alone(rules):
    allowing = rules('[[allow]]\nprogram = "git"\nverb = "push"\ntarget = "origin/docs-*"')
    assert verdicts(allowing, "git push origin docs-a") == {"allow"}
    assert verdicts(allowing, "git push origin main") == {None}
    assert verdicts(allowing, "git push origin docs-a && rm -rf /srv/x") == {"allow", None}
    assert "allow" not in verdicts(allowing, "git push evil docs-a")


@pytest.mark.parametrize("way", ["prefix", "glob"])
def test_an_allow_by_text_covers_no_shell_line(rules, way):
    allowing = rules(f'[[allow]]\nargument = "command"\n{way} = "git log*"')
    for command in ("git log", "git log; reboot", "git log $(reboot)"):
        assert verdicts(allowing, command) == {None}


def test_an_allow_by_regex_or_exact_wants_the_whole_value(rules):
    for way, pattern in (("exact", "git push origin x"), ("regex", "git push origin [a-z]+")):
        allowing = rules(f'[[allow]]\nargument = "command"\n{way} = "{pattern}"')
        assert verdicts(allowing, "git push origin x") == {"allow"}
        assert verdicts(allowing, "git push origin x; reboot") == {None}


def test_a_deny_by_text_looks_into_every_command(rules):
    denying = rules('[[deny]]\nargument = "command"\nprefix = "make deploy"')
    assert "deny" in verdicts(denying, "make test && make deploy") and verdicts(denying, "make test") == {None}


def test_hosts_effects_scopes_and_tools_are_globs(rules):
    post = Call("http_request", {"method": "POST", "url": "https://api.evil.example/x"})
    assert verdicts(rules('[[deny]]\nhost = "*.evil.example"'), post) == {"deny"}
    assert verdicts(rules('[[deny]]\neffect = "send"\nscope = "remote"'), post) == {"deny"}
    assert verdicts(rules('[[deny]]\ntool = "http_*"'), post) == {"deny"}
    assert verdicts(rules('[[deny]]\ntool = "mcp__*"'), post) == {None}


def test_a_deny_wins(rules):
    both = rules('[[allow]]\nprogram = "git"\n[[deny]]\nverb = "push"')
    assert verdicts(both, "git push") == {"deny"} and verdicts(both, "git status") == {"allow"}


def test_an_allow_of_paths_does_not_climb(rules):
    allowing = rules('[[allow]]\ntool = "Write"\nargument = "file_path"\nprefix = "/srv/site/"')
    write = lambda path: Call("Write", {"file_path": path})  # noqa: E731
    assert verdicts(allowing, write("/srv/site/a")) == {"allow"}
    assert verdicts(allowing, write("/srv/site/../../etc/passwd")) == {None}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[deny]", "cannot be read"),
        ('[[forbid]]\ntool = "x"', "'forbid' must be deny or allow"),
        ('[[deny]]\nprogramme = "x"', "a rule has no field 'programme'"),
        ('[[deny]]\nexact = "a"\nglob = "b"', "gives both exact and glob"),
        ('[[deny]]\nreason = "x"', "would match every call"),
        ('[[deny]]\nregex = "("', "the regex '\\(' is not valid: missing"),
        ('[[deny]]\nregex = "(?=x)"', "is not valid: invalid perl operator"),
        ('[[deny]]\neffect = "destroy"', "unknown effect 'destroy'"),
        ('[[deny]]\nscope = "everywhere"', "unknown scope 'everywhere'"),
        ("[[deny]]\ntool = 3", "a table of strings"),
    ],
)
def test_a_wrong_file_is_one_sentence(rules, text, says):
    with pytest.raises(ValueError, match=says):
        rules(text)


def test_no_file_is_no_rules(tmp_path):
    assert Rules.read(tmp_path / "none.toml").rules == []
