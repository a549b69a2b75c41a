"""Hard rules: what they match, what they must not, and that a wrong file is one sentence."""

import pytest

from gradproof.gate.rules import DEFAULT, Rules


@pytest.fixture
def rules(tmp_path):
    def read(text):
        (tmp_path / "rules.toml").write_text(text)
        return Rules.read(tmp_path / "rules.toml")

    return read


def verdict(rules, command, tool="Bash", **more):
    rule = rules.judge(tool, {"command": command, **more})
    return rule and rule.effect


@pytest.mark.parametrize(
    ("command", "effect"),
    [
        ("rm -rf /", "deny"),
        ("sudo rm -fr /*", "deny"),
        ("rm -r -f ~", "deny"),
        ('cd x && rm -rf "$HOME"', "deny"),
        ("mkfs.ext4 /dev/sda1", "deny"),
        ("dd if=x of=/dev/sda bs=1M", "deny"),
        (":(){ :|:& };:", "deny"),
        ("rm -rf ./build", None),
        ("rm -rf /tmp/x", None),
        ("ls -la", "allow"),
        ("pwd", "allow"),
        ("git status", "allow"),
        ("ls; rm -rf /", "deny"),
        ("ls && curl x | sh", None),
        ("ls -la\nreboot", None),
    ],
)
def test_the_default_rules(rules, command, effect):
    assert verdict(rules(DEFAULT), command) == effect


@pytest.mark.parametrize("way", ["prefix", "glob"])
def test_an_allow_does_not_cover_what_is_appended(rules, way):
    pattern = "git log" if way == "prefix" else "git log*"
    allowing = rules(f'[[allow]]\ntool = "Bash"\nargument = "command"\n{way} = "{pattern}"')
    assert verdict(allowing, "git log --oneline") == "allow"
    for more in ("; reboot", " && reboot", " | sh", "\nreboot", " $(reboot)", " `reboot`", " > /etc/passwd"):
        assert verdict(allowing, "git log" + more) is None
    if way == "prefix":
        assert verdict(allowing, "git logx") is None


def test_a_deny_prefix_may_begin_any_command_of_a_line(rules):
    denying = rules('[[deny]]\ntool = "Bash"\nargument = "command"\nprefix = "git push"')
    assert all(
        verdict(denying, command) == "deny" for command in ("git push", "make && git  push -f", "a | git push x")
    )
    assert verdict(denying, "echo git pushes") is None


def test_deny_wins_exact_and_tools_are_globs(rules):
    mixed = rules(
        '[[allow]]\ntool = "mcp__files__*"\n[[deny]]\nexact = "/etc/shadow"\n'
        '[[allow]]\ntool = "Read"\nargument = "path"\nprefix = "/home/me/"'
    )
    assert mixed.judge("mcp__files__read", {"path": "/x"}).effect == "allow"
    assert mixed.judge("mcp__files__read", {"a": {"b": ["/etc/shadow"]}}).effect == "deny"
    assert mixed.judge("Read", {"path": "/home/me/a"}).effect == "allow"
    assert mixed.judge("Read", {"path": "/home/me/../you/a"}) is None
    assert mixed.judge("Read", {}) is None and mixed.judge("Write", {"path": "/home/me/a"}) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[deny]\n", "cannot be read"),
        ("[[perhaps]]\ntool = 'x'", "'perhaps' is neither deny nor allow"),
        ("[[deny]]\nregex = '('", "the regex '\\('  ?is wrong"),
        ("[[allow]]\nprefix = 'a'\nglob = 'b'", "gives both prefix and glob"),
        ("[[allow]]\ntol = 'a'", "no field 'tol'"),
        ("[[allow]]\nreason = 'a'", "would match every call"),
        ("[[deny]]\ntool = 3", "a table of texts"),
    ],
)
def test_a_wrong_file_is_one_sentence(rules, text, says):
    with pytest.raises(ValueError, match=says):
        rules(text)


def test_no_file_is_no_rules(tmp_path):
    assert Rules.read(tmp_path / "rules.toml").judge("Bash", {"command": "rm -rf /"}) is None
