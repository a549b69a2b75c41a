"""The tools that Claude Code and Gemini CLI bring with them."""

import pytest

from gradproof.gate.acts.paths import Surroundings
from gradproof.gate.acts.tools import read_call

HERE = Surroundings("/home/dev/app", "/home/dev", "/home/dev/app")


def acts(tool, arguments):
    return {(act.effect, act.scope, str(act.target)) for act in read_call(tool, arguments, HERE)}


@pytest.mark.parametrize("key", ["dir_path", "directory", "cwd", "workdir", "working_directory", "working_dir"])
def test_a_command_runs_in_the_folder_that_the_tool_is_given(key):
    assert acts("run_shell_command", {"command": "rm -rf ./x", key: "/etc"}) == {("delete", "system", "/etc/x/")}


@pytest.mark.parametrize("folders", [{"cwd": ".", "dir_path": "/etc"}, {"dir_path": ["/etc"]}, {"dir_path": {"a": 1}}])
def test_which_of_two_folders_is_meant_is_not_guessed(folders):
    read = acts("run_shell_command", {"command": "ls", **folders})
    assert any(effect == "unknown" for effect, _, _ in read)


def test_the_files_that_a_pattern_reads():
    read = acts("read_many_files", {"include": ["/etc/shadow", "**/.env", "src/*.py"], "exclude": ["/etc/hosts"]})
    assert {(scope) for _, scope, _ in read} == {"secret", "project"}
    assert ("read", "secret", "/etc/shadow") in read
    assert not any("hosts" in target for _, _, target in read)


@pytest.mark.parametrize(
    "tool, arguments",
    [
        ("Agent", {"description": "look", "prompt": "look around", "subagent_type": "Explore"}),
        ("TaskUpdate", {"taskId": "1", "status": "completed"}),
        ("write_todos", {"todos": [{"description": "a", "status": "pending"}]}),
        ("ask_user", {"questions": [{"question": "Which?", "header": "one", "type": "text"}]}),
        ("invoke_agent", {"agent_name": "codebase_investigator", "prompt": "look around"}),
    ],
)
def test_what_agents_do_with_themselves_changes_nothing(tool, arguments):
    assert {effect for effect, _, _ in acts(tool, arguments)} == {"read"}
    assert {effect for effect, _, _ in acts(f"mcp__server__{tool}", arguments)} != {"read"}


def test_an_agents_page_for_others_is_published():
    assert ("publish", "remote", "Artifact") in acts("Artifact", {"file_path": "/home/dev/app/a.html", "favicon": "x"})


def test_a_monitor_and_a_task_with_a_command_are_shells():
    for tool in ("Monitor", "Agent", "write_todos"):
        assert acts(tool, {"command": "rm -rf /etc/x", "description": "x"}) == {("delete", "system", "/etc/x/")}
