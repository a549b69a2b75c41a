"""`gradproof gate install` and `uninstall`: what they write, what they leave alone, and what they refuse."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradproof.cli import app
from gradproof.gate import agent_settings
from gradproof.gate.agent_settings import AGENTS, installed, uninstalled
from gradproof.gate.settings_text import parse_settings

AGENT_NAMES = ["claude", "gemini"]
EVENTS = {"claude": ("PreToolUse", "PostToolUse"), "gemini": ("BeforeTool", "AfterTool")}
FULL = """{
  "$schema": "https://json.schemastore.org/claude-code-settings.json",
  "permissions": { "allow": ["Bash(make:*)"], "deny": [] },
  "hooks": {
    "PreToolUse": [
      {
        "matcher": "Bash",
        "hooks": [{ "type": "command", "command": "./mine.sh", "timeout": 5 }]
      }
    ],
    "BeforeTool": [{ "matcher": "write_.*", "hooks": [{ "type": "command", "command": "./mine.sh" }] }],
    "Stop": []
  },
  "env": { "A": "ä" }
}"""
SETTINGS = [
    "{}",
    "{\n}\n",
    '{"a": 1}',
    FULL,
    '// mine\n{\n\t"theme": "dark" // dark\n}\n',
    '{"hooks": {"Stop": []}}\r\n',
]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user who has nothing yet, in a project of theirs, with the console script installed."""
    (tmp_path / "home" / "app").mkdir(parents=True)
    (tmp_path / "bin dir").mkdir()
    script = tmp_path / "bin dir" / "gradproof-hook"
    script.write_text(f"#!{sys.executable}\nimport sys\nprint(*sys.argv[1:], sys.flags.isolated)\n")
    script.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("CLAUDE_CONFIG_DIR", "GEMINI_CLI_HOME", "GRADPROOF_GATE", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path / "home" / "app")
    monkeypatch.setattr(agent_settings, "script", lambda: script)
    return tmp_path / "home"


def gate(*words, say=None):
    return CliRunner().invoke(app, ["gate", *map(str, words)], input=say)


def commands_of(settings: dict, event: str) -> list[str]:
    return [handler["command"] for group in settings["hooks"][event] for handler in group["hooks"]]


@pytest.mark.parametrize("agent", AGENT_NAMES)
@pytest.mark.parametrize("place, folder", [("--user", "."), ("--project", "app")])
def test_a_new_user_installs_and_uninstalls(home, agent, place, folder):
    file = home / folder / f".{agent}" / "settings.json"
    done = gate("install", agent, place, "--yes", "--store", home / "gate")
    assert done.exit_code == 0, done.output
    settings = json.loads(file.read_text())
    assert list(settings) == ["hooks"]
    assert tuple(settings["hooks"]) == EVENTS[agent]
    (before,), (after,) = (commands_of(settings, event) for event in EVENTS[agent])
    assert before.endswith("|| exit 2") and after.endswith("|| exit 0")
    assert f"--store {home}/gate --format {agent}" in before
    assert f"+++ {file}" in done.output and "there is no gate in" in done.output
    again = gate("install", agent, place, "--yes", "--store", home / "gate")
    assert again.exit_code == 0 and "nothing to change" in again.output
    assert gate("uninstall", agent, place, "--yes").exit_code == 0
    assert not file.exists()
    assert "nothing to change" in gate("uninstall", agent, place, "--yes").output


@pytest.mark.parametrize("agent", AGENT_NAMES)
@pytest.mark.parametrize("before", SETTINGS)
def test_all_else_in_the_file_stays_and_uninstalling_restores_it(home, agent, before):
    file = home / f".{agent}" / "settings.json"
    file.parent.mkdir()
    file.write_bytes(before.encode())
    file.chmod(0o640)
    assert gate("install", agent, "--yes").exit_code == 0
    between = file.read_bytes().decode()
    assert set(re.findall("//.*", before)) <= set(re.findall("//.*", between))
    settings = parse_settings(between).value
    assert {key: value for key, value in settings.items() if key != "hooks"} == {
        key: value for key, value in parse_settings(before).value.items() if key != "hooks"
    }
    assert len(commands_of(settings, EVENTS[agent][1])) == 1
    assert gate("uninstall", agent, "--yes").exit_code == 0
    if before == "{}":
        assert file.read_text() == "{}"
    elif before == "{\n}\n":
        assert json.loads(file.read_text() if file.exists() else "{}") == {}
    else:
        assert file.read_bytes().decode() == before
        assert stat.S_IMODE(file.stat().st_mode) == 0o640


@pytest.mark.parametrize("agent", AGENT_NAMES)
def test_other_options_replace_the_hook(home, agent):
    file = home / f".{agent}" / "settings.json"
    file.parent.mkdir()
    file.write_text(FULL)
    gate("install", agent, "--yes", "--store", home / "one")
    assert gate("install", agent, "--yes", "--store", home / "two", "--auto-approve").exit_code == 0
    settings = json.loads(file.read_text())
    for event in EVENTS[agent]:
        ours = [command for command in commands_of(settings, event) if "gradproof-hook" in command]
        assert len(ours) == 1
        assert f"--store {home}/two --format {agent} --auto-approve" in ours[0]
    assert json.loads(FULL)["permissions"] == settings["permissions"]
    gate("uninstall", agent, "--yes")
    assert file.read_text() == FULL


def test_handlers_that_a_person_added_to_the_groups_stay(home):
    file = home / ".claude" / "settings.json"
    gate("install", "claude", "--yes")
    settings = json.loads(file.read_text())
    settings["hooks"]["PreToolUse"][0]["hooks"].append({"type": "command", "command": "./mine.sh"})
    file.write_text(json.dumps(settings, indent=2))
    gate("uninstall", "claude", "--yes")
    left = json.loads(file.read_text())
    assert left == {"hooks": {"PreToolUse": [{"matcher": "*", "hooks": [{"type": "command", "command": "./mine.sh"}]}]}}


@pytest.mark.parametrize("agent", AGENT_NAMES)
@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "not json",
        '{"a": 1,}',
        '{"a": 1, "a": 2}',
        '{"hooks": []}',
        '{"hooks": {"PreToolUse": {}, "BeforeTool": {}}}',
        '{"hooks": {"PreToolUse": [1], "BeforeTool": ["x"]}}',
        '{"hooks": {"PreToolUse": [{"hooks": 1}], "BeforeTool": [{"hooks": {}}]}}',
        '{"disableAllHooks": true, "hooksConfig": {"enabled": false}}',
        '{"disableAllHooks": true, "hooksConfig": {"disabled": ["gradproof-gate"]}}',
    ],
)
def test_a_file_that_is_not_understood_is_left_alone(home, agent, text):
    file = home / f".{agent}" / "settings.json"
    file.parent.mkdir()
    file.write_text(text)
    done = gate("install", agent, "--yes")
    assert done.exit_code == 2
    assert str(file) in done.output and "nothing was changed" in done.output
    assert file.read_text() == text


def test_a_file_that_is_no_text_is_left_alone(home):
    file = home / ".claude" / "settings.json"
    file.parent.mkdir()
    file.write_bytes(b'{"a": "\xff"}')
    done = gate("install", "claude", "--yes")
    assert done.exit_code == 2 and "not valid UTF-8" in done.output
    assert file.read_bytes() == b'{"a": "\xff"}'


def test_nothing_is_written_unless_a_person_agrees(home):
    file = home / ".claude" / "settings.json"
    for words, say, code in ((["--dry-run"], None, 0), ([], "n\n", 1), ([], "\n", 1), ([], "", 1)):
        done = gate("install", "claude", *words, say=say)
        assert done.exit_code == code, done.output
        assert '+    "PreToolUse": [' in done.output
        assert not file.exists()
    assert gate("install", "claude", say="y\n").exit_code == 0
    assert file.exists()
    for words, say in ((["--dry-run"], None), ([], "n\n")):
        assert '-    "PreToolUse": [' in gate("uninstall", "claude", *words, say=say).output
        assert file.exists()


def test_a_file_that_changes_while_the_person_thinks_is_not_overwritten(home, monkeypatch):
    file = home / ".claude" / "settings.json"
    file.parent.mkdir()
    file.write_text("{}")

    def agree(question):
        file.write_text('{"new": 1}')
        return True

    monkeypatch.setattr("typer.confirm", agree)
    done = gate("install", "claude")
    assert done.exit_code == 2 and "was changed in the meantime" in done.output
    assert file.read_text() == '{"new": 1}'


def test_a_link_stays_a_link(home):
    real = home / "dotfiles" / "claude.json"
    real.parent.mkdir()
    real.write_text("{}")
    (home / ".claude").mkdir()
    (home / ".claude" / "settings.json").symlink_to(real)
    gate("install", "claude", "--yes")
    assert (home / ".claude" / "settings.json").is_symlink()
    assert "PreToolUse" in real.read_text()


def test_the_places_of_the_settings(home, monkeypatch):
    assert gate("install", "claude", "--local", "--yes").exit_code == 0
    assert (home / "app" / ".claude" / "settings.local.json").exists()
    assert "no local settings" in gate("install", "gemini", "--local", "--yes").output
    assert "give one of" in gate("install", "claude", "--local", "--user", "--yes").output
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(home / "elsewhere"))
    monkeypatch.setenv("GEMINI_CLI_HOME", str(home / "other"))
    for agent in AGENT_NAMES:
        assert gate("install", agent, "--yes").exit_code == 0
    assert (home / "elsewhere" / "settings.json").exists()
    assert (home / "other" / ".gemini" / "settings.json").exists()


def test_the_command_as_a_shell_runs_it(home, tmp_path):
    """Isolated from the agent's environment; each way to fail is exit code 2, with something said."""
    gate("install", "claude", "--yes", "--store", home / "a gate's; $(touch x)")
    command = json.loads((home / ".claude" / "settings.json").read_text())["hooks"]["PreToolUse"][0]["hooks"][0][
        "command"
    ]
    for shell in filter(shutil.which, ("sh", "bash", "dash")):
        done = subprocess.run([shell, "-c", command], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"--store {home}/a gate's; $(touch x) --format claude 1\n"
        script = Path(shlex.split(command)[2])
        for broken in ("import os; os.kill(os.getpid(), 9)", "1/0", "raise SystemExit(3)", "import gradproof_missing"):
            kept = script.read_text()
            script.write_text(f"#!{sys.executable}\n{broken}\n")
            done = subprocess.run([shell, "-c", command], capture_output=True, text=True)
            assert done.returncode == 2 and "the call is blocked" in done.stderr
            script.write_text(kept)
        missing = command.replace(shlex.split(command)[0], "/no/such/python", 1)
        done = subprocess.run([shell, "-c", missing], capture_output=True, text=True)
        assert done.returncode == 2 and "the call is blocked" in done.stderr
    assert not (home / "app" / "x").exists()


def test_a_program_of_its_own_is_run_directly(home, tmp_path):
    """Where the console script is no script, Python cannot run it."""
    binary = tmp_path / "gradproof-hook"
    binary.write_bytes(b"\x7fELF")
    argv = agent_settings.hook_command(AGENTS["claude"], home / "gate", binary)
    assert argv[0] == str(binary)


@pytest.mark.parametrize("agent", AGENT_NAMES)
def test_hooks_of_others_are_not_taken_for_the_gates(agent):
    of = AGENTS[agent]
    other = {"matcher": "*", "hooks": [{"type": "command", "command": "echo 'gradproof-hook is not installed' '"}]}
    text = json.dumps({"hooks": {of.before: [other]}})
    assert uninstalled(text, of) == text
    wanted = agent_settings.entries(of, ["/x/gradproof-hook", "--store", "/s"])
    assert uninstalled(installed(text, of, wanted), of) == text
