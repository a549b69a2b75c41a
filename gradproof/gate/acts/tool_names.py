"""Names of tools: the known ones by kind, and what the words in any other name say."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gradproof.gate.acts.act import Effect
from gradproof.gate.acts.knowledge import knowledge

SHELL_NAMES = {"bash", "shell", "sh", "cmd", "terminal", "console", "exec_command", "run_command", "execute_command"}
SHELL_NAMES |= {
    "run_shell_command",
    "run_terminal_cmd",
    "run_in_terminal",
    "execute_bash",
    "local_shell",
    "command",
    "zsh",
}
FILE_TOOLS: dict[str, Effect] = {
    **dict.fromkeys(
        ("read", "view", "cat", "open_file", "notebookread", "read_file", "read_text_file", "ls", "list_directory"),
        "read",
    ),
    "read_many_files": "read",
    **dict.fromkeys(
        ("grep", "glob", "search_files", "codebase_search", "list_dir", "directory_tree", "file_search", "grep_search"),
        "read",
    ),
    **dict.fromkeys(
        (
            "write",
            "edit",
            "multiedit",
            "notebookedit",
            "create_file",
            "write_file",
            "edit_file",
            "str_replace",
            "insert",
        ),
        "write",
    ),
    **dict.fromkeys(
        ("apply_patch", "create_directory", "str_replace_editor", "str_replace_based_edit_tool", "search_replace"),
        "write",
    ),
    **dict.fromkeys(("delete_file", "remove_file", "delete", "delete_directory"), "delete"),
}
NAMELESS = ("grep", "glob", "ls", "apply_patch", "read_many_files")  # whose paths stand elsewhere
WEB_TOOLS: dict[str, Effect] = {
    **dict.fromkeys(
        ("webfetch", "web_fetch", "fetch", "websearch", "web_search", "google_web_search", "navigate", "browse"), "read"
    ),
    **dict.fromkeys(("browser_navigate", "open_url", "goto", "puppeteer_navigate", "http_get"), "read"),
}
INTERNAL = {
    "todowrite",
    "todoread",
    "todo_write",
    "task",
    "exitplanmode",
    "exit_plan_mode",
    "think",
    "sequentialthinking",
    "askuserquestion",
}
INTERNAL |= {
    "bashoutput",
    "enterplanmode",
    "skill",
    "listmcpresources",
    "readmcpresource",
    "slashcommand",
    "save_memory",
}
STOPS = {"killshell", "killbash", "kill_shell", "taskstop"}
# What agents' own tools do inside the agent. Only under these very names: a server's tool may be called the same.
AGENTS_OWN = {"agent", "taskcreate", "taskget", "taskupdate", "tasklist", "taskoutput", "toolsearch", "reportfindings"}
AGENTS_OWN |= {"write_todos", "ask_user", "activate_skill", "update_topic", "invoke_agent", "complete_task"}
AGENTS_OWN |= {"tracker_create_task", "tracker_update_task", "tracker_add_dependency", "enter_plan_mode"}
PUBLISHING = {"artifact", "projects"}  # of agents, to a service
LOCAL_SERVERS = (
    "filesystem",
    "memory",
    "time",
    "sequential-thinking",
    "sequentialthinking",
    "git",
    "ide",
    "everything",
)
SQL_TOOLS = re.compile(
    r"(?i)sql|postgres|mysql|sqlite|database|(?:^|_)db(?:_|$)|bigquery|snowflake|redshift|clickhouse|duckdb|supabase"
)
MONEY = re.compile(
    r"(?i)(?:^|_|\b)(?:pay|payment|payments|payout|payouts|charge|charges|transfer|purchase|buy|order|checkout|refund|wire|withdraw|donate|invoice_pay|stripe|paypal|bank|trade|subscribe|remit)(?:_|\b|$)"
)
HOSTED = re.compile(r"github|gitlab|bitbucket|gist|drive|dropbox|onedrive|sharepoint|notion|s3|cloud|ftp|ssh|remote")
HOLDS_SECRETS = re.compile(
    r"(?i)secret|passw|credential|vault|keychain|bitwarden|lastpass|keepass|api_?key|private_?key"
)
SAVES = re.compile(r"(?i)screenshot|export|save|download|dump|record")
CARRIES = re.compile(r"(?i)upload|attach")
RUNS_PYTHON = re.compile(r"(?i)python|jupyter|ipython|notebook|ide|execute_?code|code_?interpreter|repl")
FORMS = re.compile(r"(?i)fill|submit|click|type|press|upload|select_option|drag|evaluate")
BROWSERS = re.compile(r"(?i)evaluate|puppeteer|playwright|browser|javascript")
MOVES = re.compile(r"(?i)move|rename")
MAIL = re.compile(r"(?i)mail|message|slack|discord|teams|telegram|sms|whatsapp|notify|tweet|invite")
NAME_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
JOINED = frozenset(("and", "then", "replace"))
SEVERITY: tuple[Effect, ...] = (
    "spend",
    "delete",
    "change_rights",
    "publish",
    "send",
    "stop",
    "execute",
    "install",
    "write",
    "read",
)


def base_name(tool: str) -> str:
    """`mcp__server__tool` is the tool; names are compared in lower case."""
    return re.split(r"__|\.|/|:", tool)[-1].lower().replace("-", "_")


def server_name(tool: str) -> str:
    parts = tool.split("__")
    return parts[1].lower() if len(parts) > 2 and parts[0] == "mcp" else ""


def named_effect(words: Sequence[str]) -> tuple[Effect, str]:
    """The worst verb among the first words of a name; a tool without a verb runs."""
    verbs = knowledge().verbs
    spoken: list[tuple[Effect, str]] = [(verbs[word], word) for word in words if word in verbs]
    if not spoken:
        return "execute", ""
    leading = [pair for pair in spoken if pair[1] in words[:1]]
    joined = not JOINED.isdisjoint(words)  # `list_and_forward` does both
    if (
        leading
        and leading[0][0] == "read"
        and not joined
        and not any(pair[0] in ("delete", "spend") for pair in spoken)
    ):
        return leading[0]
    return min(spoken, key=lambda pair: SEVERITY.index(pair[0]) if pair[0] in SEVERITY else 0)
