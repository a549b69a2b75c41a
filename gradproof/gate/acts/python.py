"""Python code, read from its syntax tree: calls that touch files, programs or the network."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from warnings import catch_warnings, simplefilter

from gradproof.gate.acts.act import Effect
from gradproof.gate.acts.command import BUILTINS, Command
from gradproof.gate.acts.paths import ACTIVE, TILDE, UNKNOWN
from gradproof.gate.acts.places import here, locate
from gradproof.gate.acts.programs import run
from gradproof.gate.acts.sql import read_sql
from gradproof.gate.acts.unread import BYTES_PER_WORK, unread
from gradproof.gate.acts.variables import assigned
from gradproof.gate.acts.word import Word

MOST_CODE = 8 * 2**10
TOP_LEVEL = re.compile(r"\n(?=[^\s#)\]}'\"])")
FIRST: dict[str, tuple[Effect, bool]] = {  # function → effect on its first argument, and whether that is a folder
    **dict.fromkeys(("os.remove", "os.unlink", "os.rmdir", "os.removedirs"), ("delete", False)),
    **dict.fromkeys(("shutil.rmtree",), ("delete", True)),
    **dict.fromkeys(("os.listdir", "os.scandir", "os.walk", "glob.glob", "os.stat", "os.readlink"), ("read", False)),
    **dict.fromkeys(("os.mkdir", "os.makedirs", "os.truncate", "os.utime", "os.mknod"), ("write", False)),
    **dict.fromkeys(("os.chmod", "os.chown", "os.lchown", "shutil.chown"), ("change_rights", False)),
    **dict.fromkeys(("runpy.run_path", "exec_file"), ("execute", False)),
}
BOTH: dict[str, tuple[Effect, Effect]] = {
    **dict.fromkeys(("os.rename", "os.replace", "os.renames", "shutil.move"), ("delete", "write")),
    **dict.fromkeys(("shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copytree"), ("read", "write")),
    **dict.fromkeys(("os.symlink", "os.link"), ("write", "write")),
}
METHODS: dict[str, tuple[Effect, bool]] = {  # of a Path
    **dict.fromkeys(("unlink", "rmdir"), ("delete", False)),
    **dict.fromkeys(("write_text", "write_bytes", "touch", "mkdir", "symlink_to", "hardlink_to"), ("write", False)),
    **dict.fromkeys(("read_text", "read_bytes", "iterdir", "glob", "rglob"), ("read", False)),
    **dict.fromkeys(("chmod", "lchmod"), ("change_rights", False)),
    **dict.fromkeys(("rename", "replace"), ("delete", False)),
}
SHELLS = ("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput")
SHELLS += ("asyncio.create_subprocess_shell", "commands.getoutput", "os.startfile")
PROCESSES = (
    *("subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output", "subprocess.Popen"),
    "pty.spawn",
)
REPLACES = ("os.exec", "os.spawn", "os.posix_spawn", "asyncio.create_subprocess_exec")  # a program, then its arguments
UNPACKS = ("extractall", "extract", "unpack_archive")
RISKY_MODULES = frozenset(
    (
        *("boto3", "botocore", "docker", "kubernetes", "azure", "paramiko", "fabric", "asyncssh", "pexpect", "psutil"),
        *("ftplib", "telnetlib", "smtplib", "imaplib", "poplib", "xmlrpc", "ctypes", "cffi", "socket", "socketserver"),
        *("pyautogui", "pynput", "keyboard", "winreg", "hvac", "ldap3", "impacket", "scapy", "twilio", "stripe"),
        *("slack_sdk", "tweepy", "discord", "telegram", "selenium", "playwright", "pymongo", "redis", "psycopg"),
        *("psycopg2", "pymysql", "MySQLdb", "asyncpg", "sqlalchemy", "snowflake", "pip", "sh", "plumbum", "dbus"),
    )
)
READS_SQL = re.compile(r"(?is)^\s*(?:select|explain|pragma\s+\w+\s*(?:\(|;|$)|with|show|describe)\b")
GETS = ("urllib.request.urlopen", "urlopen", "urllib.request.urlretrieve")
CLIENTS = ("requests", "httpx", "session", "client", "aiohttp")
SENDS = ("post", "put", "patch", "request")
OPAQUE = (
    *(
        "eval",
        "exec",
        "compile",
        "__import__",
        "importlib.import_module",
        "ctypes.CDLL",
        "pickle.loads",
        "marshal.loads",
    ),
    *("getattr", "setattr", "globals", "vars", "socket.socket", "socket.create_connection", "smtplib.SMTP", "os.fork"),
    *(
        "ftplib.FTP",
        "telnetlib.Telnet",
        "paramiko.SSHClient",
        "base64.b64decode",
        "codecs.decode",
        "types.FunctionType",
    ),
    *("http.client.HTTPConnection", "http.client.HTTPSConnection", "urllib3.PoolManager", "urllib3.request"),
    *("builtins.eval", "builtins.exec", "code.interact", "runpy.run_module", "os.kill", "os.killpg", "os.setuid"),
)
POSITIONAL = ("path", "file", "args", "src", "dst", "source", "destination", "cmd", "command", "url", "top", "filename")
SAVES = ("save", "savetxt", "savez", "savefig", "to_csv", "to_json", "to_parquet", "to_pickle", "to_excel", "to_html")
MOVES, LISTING = ("rename", "replace"), ("glob", "rglob", "iglob", "iterdir")
CLIENT_LIBRARIES = ("requests", "httpx", "aiohttp", "urllib3", "urllib", "http")
ACTING = frozenset(
    name.split(".")[0] for name in (*FIRST, *BOTH, *SHELLS, *PROCESSES, *REPLACES, "pathlib", "urllib") if "." in name
)


def _moves(node: ast.Call) -> bool:
    """A path is renamed to one other; `text.replace(old, new)` and `frame.rename({...})` are no paths."""
    one = len(node.args) == 1 and not isinstance(node.args[0], ast.Dict)
    return one or any(keyword.arg in ("target", None) for keyword in node.keywords)


def _plain(function: ast.expr) -> bool:
    return isinstance(function, ast.Name | ast.Attribute)


def _acts(name: str) -> bool:
    """Whether a function of that name changes files or runs programs."""
    return (
        (name in FIRST and FIRST[name][0] != "read")
        or name in BOTH
        or name in SHELLS
        or name in PROCESSES
        or name.startswith(REPLACES)
    )


def read_python(command: Command, text: str) -> None:
    """Adds the acts of a piece of code; `unknown` where it cannot be parsed, or makes its calls while it runs."""
    if UNKNOWN in text:
        command.unknown("code that is made while it runs")
    if len(text) > MOST_CODE:
        text = _beginning(command, text)
    command.reading.pay(len(text) / BYTES_PER_WORK)
    try:
        with catch_warnings():
            simplefilter("ignore")  # of escapes and the like: it is not ours to mend
            tree = ast.parse(text.replace(UNKNOWN, "_"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        command.unknown("Python that cannot be parsed")
        return
    before = len(command.reading.acts)
    try:
        _Code(command).visit(tree)
    except RecursionError:
        command.unknown("Python that is nested too deeply")
    if len(command.reading.acts) == before:
        here(command, "execute")


def _beginning(command: Command, text: str) -> str:
    """As many whole statements as are read; of the rest, what would be blocked is taken to be there."""
    command.unknown("more code than is read")
    end = max((match.start() for match in TOP_LEVEL.finditer(text, 0, MOST_CODE)), default=0)
    command.reading.acts += unread(text[end:], command.state)
    return text[:end]


class _Code(ast.NodeVisitor):
    def __init__(self, command: Command):
        self.command = command
        self.names: dict[str, str] = {}  # what a name was imported as
        self.values: dict[str, str] = {}  # texts and paths that were assigned

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.names[alias.asname or alias.name.split(".")[0]] = (
                alias.name if alias.asname else alias.name.split(".")[0]
            )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name == "*" and (node.module or "").split(".")[0] in ACTING:
                self.command.unknown(f"names that come from {node.module}")
            self.names[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Subscript) and self.name(target.value) == "os.environ":
                assigned(self.command.reading, self.text(target.slice), [self.word(node.value)], self.command.state)
            if isinstance(target, ast.Name):
                self.values[target.id] = UNKNOWN if target.id in self.values else self.text(node.value)

    def visit_For(self, node: ast.For) -> None:
        self._bound(node.target, node.iter)
        self.generic_visit(node)

    def visit_comprehended(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        for loop in node.generators:
            self._bound(loop.target, loop.iter)
        self.generic_visit(node)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = visit_comprehended

    def _bound(self, target: ast.expr, looped: ast.expr) -> None:
        """What a loop's variable stands for: any of the files that a pattern names, or nobody knows what."""
        if isinstance(target, ast.Name):
            again = target.id in self.values
            self.values[target.id] = UNKNOWN if again else self._listed(looped)

    def _listed(self, node: ast.expr) -> str:
        """`Path("src").glob("*.py")`, `glob.glob("src/*.py")`, sorted or not: a pattern as a shell has it."""
        if not isinstance(node, ast.Call):
            return UNKNOWN
        method = (self.name(node.func) or "").rpartition(".")[2]
        given = [self.text(argument) for argument in node.args]
        if method in ("sorted", "list", "set", "reversed") and node.args:
            return self._listed(node.args[0])
        if method not in LISTING or UNKNOWN in "".join(given):
            return UNKNOWN
        of_module = not isinstance(node.func, ast.Attribute) or self.name(node.func) in ("glob.glob", "glob.iglob")
        base = "" if of_module else self.text(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        pattern = given[0] if given else "*"
        if not base and not of_module:
            return UNKNOWN
        return "/".join(part for part in (base, "*" if method == "rglob" else "", pattern) if part).translate(ACTIVE)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._named(node)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self._named(node)

    def _named(self, node: ast.expr) -> None:
        """A function that is named and not called: `map(os.remove, …)`, `f = os.remove`."""
        if _acts(self.name(node) or ""):
            self.command.unknown("a function that is called under another name")

    def visit_Call(self, node: ast.Call) -> None:
        for part in (getattr(node.func, "value", None) if _plain(node.func) else node.func, *node.args, *node.keywords):
            if isinstance(part, ast.AST):
                self.visit(part)
        name = self.name(node.func)
        if name is None:
            if not isinstance(node.func, ast.Attribute):
                self.command.unknown("a function that is made while the code runs")
            return
        self._call(name, node)

    def _call(self, name: str, node: ast.Call) -> None:
        command = self.command
        args = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg in POSITIONAL)]
        method = name.rsplit(".", 1)[-1]
        if any(keyword.arg is None for keyword in node.keywords) and _acts(name):
            command.unknown("arguments that are made while the code runs")
        if name in FIRST and args:
            effect, folder = FIRST[name]
            command.touch(effect, self.word(args[0]), folder=folder)
        elif name in BOTH and len(args) > 1:
            for effect, argument in zip(BOTH[name], args, strict=False):
                command.touch(effect, self.word(argument), folder=True)
        elif name in ("open", "io.open", "builtins.open") and args:
            mode = (
                self.text(args[1])
                if len(args) > 1
                else next((self.text(k.value) for k in node.keywords if k.arg == "mode"), "r")
            )
            command.touch("write" if set(mode) & set("wax+") or UNKNOWN in mode else "read", self.word(args[0]))
        elif name == "os.open" and args:
            reads = len(args) > 1 and (self.name(args[1]) or "") == "os.O_RDONLY"
            command.touch("read" if reads else "write", self.word(args[0]))
        elif name in SHELLS and args:
            self._shell(self.text(args[0]))
        elif name in PROCESSES and args:
            self._process(args, node)
        elif name.startswith(REPLACES) and args:
            self._replaces(name, args)
        elif name in ("os.chdir", "contextlib.chdir") and args:
            BUILTINS["cd"](Command(command.reading, "cd", [self.word(args[0])], command.state))
        elif name == "sqlite3.connect" and args:
            command.touch("read", self.word(args[0]))
        elif method in ("execute", "executescript", "executemany") and args:
            self._sql(self.text(args[0]))
        elif method in UNPACKS:
            command.touch("write", self.word(args[-1]) if args and name != "shutil.unpack_archive" else Word((".",)))
        elif name == "webbrowser.open" and args:
            locate(command, "send", "url", self.word(args[0]))
        elif name in GETS and args:
            has_data = len(args) > 1 or any(keyword.arg == "data" for keyword in node.keywords)
            locate(command, "send" if has_data else "read", "url", self.word(args[0]))
        elif name.split(".")[0] in CLIENTS and method in (*SENDS, "get", "head", "delete") and args:
            effect: Effect = "send" if method in SENDS else "delete" if method == "delete" else "read"
            locate(command, effect, "url", self.word(args[-1] if method == "request" else args[0]))
        elif method in (*SENDS, "delete") and self.asks_hosts() and "://" in "".join(map(self.text, args[:2])):
            url = next(argument for argument in args if "://" in self.text(argument))
            locate(command, "delete" if method == "delete" else "send", "url", self.word(url))
        elif method in SAVES and isinstance(node.func, ast.Attribute):
            for text in filter(None, map(self.text, args[:2])):
                if UNKNOWN not in text:
                    command.touch("write", Word((text,)))
        elif name in OPAQUE or ("." in name and name.split(".")[0] in RISKY_MODULES):
            literal = name == "getattr" and len(args) > 1 and isinstance(args[1], ast.Constant)
            if not literal and not name.endswith("b64decode"):
                command.unknown(f"{name}, which may do anything")
        elif method == "open" and isinstance(node.func, ast.Attribute) and (base := self.text(node.func.value)):
            mode = next((self.text(k.value) for k in node.keywords if k.arg == "mode"), "r")
            mode = self.text(node.args[0]) if node.args else mode
            command.touch("write" if set(mode) & set("wax+") or UNKNOWN in mode else "read", Word((base,)))
        elif method in METHODS and isinstance(node.func, ast.Attribute):
            base = self.text(node.func.value)
            if base and (method not in MOVES or _moves(node)):
                effect, folder = METHODS[method]
                command.touch(effect, Word((base,)), folder=folder)
                if method in MOVES and args:
                    command.touch("write", self.word(args[0]))

    def _replaces(self, name: str, args: list[ast.expr]) -> None:
        """`os.execvp("rm", ["rm", "-rf", "/"])`, `os.spawnlp(mode, "rm", "rm", "-rf", "/")`."""
        args = args[1:] if name.startswith("os.spawn") else args
        given = next((arg.elts for arg in args if isinstance(arg, ast.List | ast.Tuple)), None)
        if not args or (given is None and name.startswith(("os.execv", "os.spawnv", "os.posix"))):
            self.command.unknown("a command that is made while it runs")
            return
        own_name = name != "asyncio.create_subprocess_exec"
        rest = (given if given is not None else args[1:])[1 if own_name else 0 :]
        words = [self.word(args[0]), *(self.word(arg) for arg in rest if not isinstance(arg, ast.Dict))]
        run(self.command.reading, words, self.command.beside(), self.command.stdin, None)

    def _sql(self, text: str) -> None:
        if not READS_SQL.match(text) or any(act.effect != "read" for act in read_sql(text)):
            self.command.unknown("SQL that changes a database")

    def _shell(self, text: str) -> None:
        if text == UNKNOWN:
            self.command.unknown("a command that is made while it runs")
        else:
            self.command.shell(text, self.command.beside())

    def _process(self, args: list[ast.expr], node: ast.Call) -> None:
        first = args[0]
        if isinstance(first, ast.List | ast.Tuple):
            words = [self.word(element) for element in first.elts]
            if words:
                run(self.command.reading, words, self.command.beside(), self.command.stdin, None)
            return
        text = self.text(first)
        if UNKNOWN in text:
            self.command.unknown("a command that is made while it runs")
        else:
            self._shell(text)

    def asks_hosts(self) -> bool:
        """Whether a library for requests was imported."""
        return any(name.split(".")[0] in CLIENT_LIBRARIES for name in self.names.values())

    def name(self, node: ast.expr) -> str | None:
        """`os.path.join` of a function, by what was imported; None where it is not a plain name."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            base = self.name(node.value) if isinstance(node.value, ast.Name | ast.Attribute) else "?"
            return f"{base}.{node.attr}"
        return None

    def word(self, node: ast.expr) -> Word:
        return Word((self.text(node) or UNKNOWN,))

    def text(self, node: ast.expr) -> str:
        """A text or a path, as far as the code says it."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else ""
        if isinstance(node, ast.Name):
            return self.values.get(node.id, UNKNOWN)
        if isinstance(node, ast.JoinedStr):
            return "".join(self.text(value) if isinstance(value, ast.Constant) else UNKNOWN for value in node.values)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.text(node.left) + self.text(node.right)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            return f"{self.text(node.left)}/{self.text(node.right)}"
        if isinstance(node, ast.Call):
            return self._made(node)
        if isinstance(node, ast.Attribute) and node.attr in ("parent", "name", "stem"):
            return UNKNOWN
        return UNKNOWN

    def _made(self, node: ast.Call) -> str:
        name = self.name(node.func) or ""
        parts = [self.text(argument) for argument in node.args]
        if name.endswith("expanduser"):
            text = (
                parts[0] if parts else self.text(node.func.value) if isinstance(node.func, ast.Attribute) else UNKNOWN
            )
            return TILDE + text[1:] if text.startswith("~") else text
        makers: dict[str, Callable[[], str]] = {
            "Path": lambda: "/".join(parts) or ".",
            "PurePath": lambda: "/".join(parts),
            "join": lambda: "/".join(parts) if name.endswith("path.join") else UNKNOWN,
            "home": lambda: TILDE,
            "getcwd": lambda: ".",
            "cwd": lambda: ".",
            "abspath": lambda: parts[0] if parts else UNKNOWN,
            "realpath": lambda: parts[0] if parts else UNKNOWN,
            "mkdtemp": lambda: "/tmp/tmp0",
            "mkstemp": lambda: "/tmp/tmp0",
            "gettempdir": lambda: "/tmp",
            "str": lambda: parts[0] if parts else "",
        }
        maker = makers.get(name.rsplit(".", 1)[-1])
        return maker() if maker else UNKNOWN
