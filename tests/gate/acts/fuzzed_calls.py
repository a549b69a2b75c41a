"""Calls that nobody wrote: random JSON, random bytes, and real calls that were cut, spliced, repeated, nested in each
other and blown up, in every shape that a call may have."""

import json
import shlex
import string
from pathlib import Path

from gradproof.gate.made import made

FOLDER = Path(__file__).parent
LONGEST = 200_000
PIECES = (
    *("$(", ")", "`", "'", '"', "\\", "\n", ";", "&&", "||", "|", "&", ">", "<<EOF\n", "EOF\n", "{", "}", "((", "))"),
    *("$X", "${X:-", "<(", "[[", "]]", "if ", "then ", "fi", "for i in ", "do ", "done", "case x in ", "esac", "#"),
    *(
        "function f",
        "rm -rf /",
        "sudo ",
        "sh -c ",
        "eval ",
        "..",
        "~",
        "*",
        "/etc/passwd",
        "\u00e4",
        "\u202e",
        "\ue000",
    ),
    *(
        "\t",
        "\r",
        "=",
        "-",
        "${!x}",
        "$'\\x41'",
        "<<<",
        ">&2",
        "\ue010",
        "\ue004",
        "$((",
        "a[0]=",
        "+=(",
        "!(",
        "?([",
        "@",
    ),
    *("password=", "--token ", "AKIAIOSFODNN7EXAMPLE", "-----BEGIN RSA PRIVATE KEY-----\n", "Bearer ", "a@b.example "),
    *(
        "https://u:p@x.example/?k=",
        "4111 1111 1111 1111 ",
        "\x1b[2J",
        "\x85",
        "\u2028",
        "\ufeff",
        "{1..9}",
        "{a,b}",
        "-p",
    ),
)
WORDS = (
    *("a", "-x", "/", "../..", "~/x", "$X", "*", "src/a.py", "'a b'", '"$Y"', "{a,b}", ".env", "a=b", "--k=v", "$(id)"),
    *("http://x.example/a", "root@h:/x", "`id`", "$((1+2))", "${A[@]}", "-rf", "--", "-", "\\;", "+", "1", "@f", "%s"),
)
NAMES = ("command", "path", "url", "to", "amount", "query", "sql", "", "@x", "cwd", "args", "content", "method", "env")
TOOLS = (
    "Bash",
    "Write",
    "http_request",
    "run_sql",
    "x",
    "mcp__a__b",
    "send_email",
    "delete_file",
    "apply_patch",
    "Glob",
)
SQL = ("select 1", "drop table t", "with a as (select 1) select * from a", "delete from t where a = 1", "copy t to 'x'")
PYTHON = ("import os; os.system('ls')", "open('/etc/passwd').read()", "x = [1]\nfor i in x: print(i)", "eval(input())")


def real_calls(seed):
    """Those of the tests, and made-up ones."""
    rows = [json.loads(line) for line in (FOLDER / "calls.jsonl").read_text().splitlines()]
    calls = [row["call"] for row in rows]
    for line in (FOLDER / "corrections.jsonl").read_text().splitlines():
        row = json.loads(line)
        calls += [row["call"], *row["twins"], *row["paraphrases"]]
    calls += [dict(tool=m.call.tool, arguments=m.call.arguments, cwd=m.call.cwd) for m in made(seed, 400)]
    return calls


class Fuzz:
    """Draws calls: `call()` is JSON, as text, bytes or plain data."""

    def __init__(self, draws, calls):
        self.draws, self.calls = draws, calls
        texts = [self.text_of(call) for call in calls]
        self.commands = [text for text in texts if text]

    @staticmethod
    def text_of(call):
        given = call.get("arguments", call)
        return given.get("command") if isinstance(given.get("command"), str) else ""

    def call(self):
        way = self.draws.randrange(10)
        if way == 0:
            return self.random_call()
        if way == 1:
            return self.random_bytes()
        if way < 5:
            return self.shaped("Bash", {"command": self.command()})
        if way == 5:
            return self.blown_up()
        return self.mutated_call()

    # shapes

    def shaped(self, tool, arguments, cwd=None):
        """In one of the shapes, as one of the types that `calls.parse` takes."""
        draws = self.draws
        cwd = draws.choice(["", "/a/b", "/home/me", "/", "/a/b/" + "c/" * 40]) if cwd is None else cwd
        shapes = (
            {"tool": tool, "arguments": arguments, "cwd": cwd},
            {"name": tool, "arguments": arguments, "cwd": cwd},
            {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}},
            {"tool_name": tool, "tool_input": arguments, "cwd": cwd, "session_id": "s"},
        )
        call = dict(draws.choice(shapes))
        if draws.random() < 0.1:
            call["history"] = [draws.choice([self.command(), self.past()]) for _ in range(draws.randint(1, 5))]
        if draws.random() < 0.05:
            call["annotations"] = {"destructiveHint": draws.random() < 0.5, "readOnlyHint": True}
        return call if draws.random() < 0.5 else json.dumps(call, ensure_ascii=draws.random() < 0.5)

    def past(self):
        return {"tool": "Write", "arguments": {"file_path": "/a/b/x.sh", "content": self.command()}}

    def random_call(self):
        arguments = self.value()
        arguments = arguments if isinstance(arguments, dict) else {"command": arguments}
        return self.shaped(self.draws.choice(TOOLS), arguments)

    def random_bytes(self):
        """Bytes that are no JSON, JSON with some of them changed, or a command of bytes."""
        draws = self.draws
        raw = draws.randbytes(draws.randint(0, 400))
        way = draws.randrange(4)
        if way == 0:
            return raw
        if way == 1:
            whole = bytearray(json.dumps(draws.choice(self.calls)).encode())
            for _ in range(draws.randint(1, 4)):
                whole[draws.randrange(len(whole))] = draws.randrange(256)
            return bytes(whole)
        return self.shaped("Bash", {"command": raw.decode("latin-1").replace("\0", "")})

    def value(self, depth=0):
        draws = self.draws
        way = draws.randrange(7 if depth < 5 else 4)
        if way == 0:
            return draws.choice([None, True, False, draws.randint(-10, 10**6), draws.random(), 10**200, -0.0])
        if way < 4:
            return "".join(draws.choices(string.printable, k=draws.randint(0, 30)))
        if way == 4:
            return [self.value(depth + 1) for _ in range(draws.randint(0, 4))]
        return {draws.choice(NAMES): self.value(depth + 1) for _ in range(draws.randint(0, 5))}

    # commands

    def command(self):
        """Real commands, mutated, spliced, nested, a few of them together."""
        draws, text = self.draws, self.draws.choice(self.commands)
        for _ in range(draws.randint(1, 4)):
            text = draws.choice((self.mutated, self.spliced, self.nested, self.repeated, self.mutated))(text)
            if len(text) > LONGEST:
                break
        return text.replace("\0", "")[:LONGEST]

    def mutated(self, text):
        """A few pieces put in, cut out, doubled, swapped."""
        draws = self.draws
        for _ in range(draws.randint(1, 6)):
            i, j = sorted(draws.randrange(len(text) + 1) for _ in range(2))
            way = draws.randrange(6)
            if way == 0:
                text = text[:i] + draws.choice(PIECES) + text[i:]
            elif way == 1:
                text = text[:i] + text[j:]
            elif way == 2:
                text = text[:j] + text[i:j] * draws.randint(1, 40) + text[j:]
            elif way == 3:
                text = text[:i] + text[i:j][::-1] + text[j:]
            elif way == 4:
                text = text[:i] + draws.choice(WORDS) + " " + text[i:]
            else:
                text = text[:i] + draws.choice(PIECES) * draws.randint(1, 200) + text[i:]
            text = text[:LONGEST]
        return text

    def spliced(self, text):
        draws, other = self.draws, self.draws.choice(self.commands)
        way = draws.randrange(4)
        if way == 0:
            return text + draws.choice(("; ", "\n", " && ", " || ", " | ", " & ", " ", "")) + other
        i = draws.randrange(len(text) + 1)
        return text[:i] + other[draws.randrange(len(other)) :] + (text[i:] if way == 1 else "")

    def repeated(self, text):
        draws = self.draws
        between = draws.choice(("; ", "\n", " && ", " | ", " ", "\n\n", " || "))
        return between.join([text] * draws.choice((2, 3, 8, 40, 300)))[:LONGEST]

    def nested(self, text):
        draws, other = self.draws, self.draws.choice(self.commands)
        quoted = shlex.quote(text)
        return draws.choice(
            (
                lambda: f"sh -c {quoted}",
                lambda: f'bash -c "{text}"',
                lambda: f"{other} $({text})",
                lambda: f"{other} `{text}`",
                lambda: f"bash <<'EOF'\n{text}\nEOF\n{other}",
                lambda: f"cat <<EOF | sh\n{text}\n$({other})\nEOF",
                lambda: f"{{ {text}; }} > out 2>&1",
                lambda: f"f() {{ {text}\n}}; f; f a b",
                lambda: f"a=({text}); ${{a[@]}}; echo ${{a[0]}}",
                lambda: f"case $x in a) {text};; *) {other};; esac",
                lambda: f"for i in a b {text.split()[:1]}; do {text} $i; done",
                lambda: f"while read x; do {text} $x; done < <({other})",
                lambda: f"if {text}; then {other}; else {text}; fi",
                lambda: f"echo $(( {text} + 1 ))",
                lambda: f"eval {quoted}",
                lambda: f"sudo env A=1 nohup timeout 5 xargs -I {{}} sh -c {quoted}",
                lambda: f"find . -name '*.py' -exec {text} {{}} \\; -o -exec sh -c {quoted} {{}} +",
                lambda: f"ssh h {quoted}",
                lambda: f"python3 -c {shlex.quote(f'import os; os.system({text!r})')}",
                lambda: f"node -e {shlex.quote(f'require({text!r})')}; perl -e {shlex.quote(f'system({text!r})')}",
                lambda: f"X={quoted}; Y=$X; $Y; eval $X",
                lambda: f"cat <<< {quoted} | {other}",
                lambda: f"( {text} ) & wait; {other}",
                lambda: f"alias q={quoted}; q",
                lambda: f"docker run -v /:/x i sh -c {quoted}",
                lambda: f"cat > x.sh <<'EOF'\n{text}\nEOF\nsh x.sh",
                lambda: f"trap {quoted} EXIT; {other}",
                lambda: f"psql -c {shlex.quote(draws.choice(SQL) + text[:40])}",
            )
        )()

    # blown up

    def blown_up(self):
        """More of something than any call has."""
        draws = self.draws
        n = draws.choice((5, 20, 60, 200, 600, 2000, 8000))
        word, other = draws.choice(WORDS), draws.choice(self.commands)
        text = draws.choice(
            (
                lambda: "echo " + "{a,b}" * min(n, 40),
                lambda: "rm " + "{a,{b,c}," * min(n, 60) + "}" * min(n, 60),
                lambda: "echo {1.." + "9" * min(n, 300) + "}" * draws.randint(1, 3),
                lambda: (
                    f"{draws.choice(('rm', 'ls', 'x', 'git add', 'curl', 'chmod 7', 'kubectl get'))} " + f"{word} " * n
                ),
                lambda: "ls " + "x" * n * 20,
                lambda: "ls " + " ".join(draws.choice(WORDS) for _ in range(n)),
                lambda: "; ".join(f"V{i % 50}=a{i}" for i in range(n)) + "; rm $V1$V2$V3 " + "$V4" * 20,
                lambda: "for i in " + " ".join(map(str, range(n))) + "; do rm $i$i $i/$i; done",
                lambda: "".join(f"for a{i} in 1 2 3; do " for i in range(n % 24)) + other + "; done" * (n % 24),
                lambda: "if x; then V=1; else V=2; fi; " * min(n, 200) + "rm $V $V$V$V",
                lambda: "cat a " + "> f " * n,
                lambda: "cat a " + "".join(f"> f{i} 2>&1 " for i in range(n)),
                lambda: " | ".join([other] * min(n, 200)),
                lambda: "cd a; " * n + "rm -rf ..",
                lambda: "".join(f"cd a{i} || cd b{i}; " for i in range(n)) + "rm x",
                lambda: "$(" * n + other + ")" * n,
                lambda: 'sh -c "' * min(n, 20) + other,
                lambda: "".join(f"cat <<E{i}\n$X $(id)\nE{i}\n" for i in range(n)),
                lambda: "cat <<'E'\n" + f"{other}\n" * n + "E\n",
                lambda: "sh <<'E'\n" + f"{other}\n" * n + "E\n",
                lambda: "cat <<E\n" + "$X `id` " * n + "\nE",
                lambda: "f() { f; g; }; g() { f; h; }; h() { " + "f; g; " * min(n, 200) + "}; h",
                lambda: "".join(f"f{i}() {{ f{i + 1}; f{i + 1}; }}\n" for i in range(min(n, 30))) + "f0",
                lambda: "find . " + "-exec rm {} \\; " * n,
                lambda: "xargs " * n + "rm",
                lambda: "sudo env nice timeout 5 " * n + "rm -rf x",
                lambda: f"psql -c {shlex.quote('; '.join([draws.choice(SQL)] * n))}",
                lambda: f"psql -c {shlex.quote('select ' + '(' * n + '1' + ')' * n)}",
                lambda: f"psql -c {shlex.quote('select * from t where ' + ' or '.join(f'a = {i}' for i in range(n)))}",
                lambda: f"psql -c {shlex.quote('insert into t values ' + ', '.join(['(1, 2)'] * n))}",
                lambda: f"python3 -c {shlex.quote(chr(10).join([draws.choice(PYTHON)] * n))}",
                lambda: f"python3 -c {shlex.quote('x = ' + '(' * n + '1' + ')' * n)}",
                lambda: f"python3 -c {shlex.quote('x = ' + ' + '.join(['1'] * n))}",
                lambda: f"python3 -c {shlex.quote('a = b' + '.c(1)' * n)}",
                lambda: f"node -e {shlex.quote('fs.rm(x); ' * n)}; perl -e {shlex.quote('unlink 1; ' * n)}",
                lambda: f"sed -e {shlex.quote('s/a/b/;' * n)} f; awk {shlex.quote('{ system(x) } ' * n)}",
                lambda: "curl https://x.example/" + "a/../%2e%2e/" * n + "?" + "k=v&" * n,
                lambda: "curl " + "-H 'Authorization: Bearer abcDEF123456abcDEF123456' " * n + "https://x.example",
                lambda: "mysql -psecret1 " * n,
                lambda: "echo " + "password=hunter2 a@b.example AKIAIOSFODNN7EXAMPLE " * n,
                lambda: "echo " + "".join(draws.choices(string.ascii_letters + string.digits, k=n * 5)),
                lambda: "echo " + " ".join("".join(draws.choices(string.printable, k=9)) for _ in range(n)),
                lambda: "a=(" + f"{word} " * n + '); rm "${a[@]}" ${a[@]}',
                lambda: "echo " + "$((1+" * min(n, 200) + "1" + "))" * min(n, 200),
                lambda: "[[ " + "a == b && " * n + "c ]]",
                lambda: "case x in " + "a|b) ls;; " * n + "esac",
                lambda: "git " + "-c a=b " * n + "push",
                lambda: "echo '" + "a\n" * n + "' | sh",
                lambda: "\n" * n + other + " \n\t" * n,
                lambda: "# x\n" * n + other,
                lambda: "ls \u202e\u00e4\ue000\ue001" * n,
                lambda: "rm " + "*?[a]" * n,
                lambda: "ls " + "a/" * n + "../" * n + "x",
                lambda: "printf " + shlex.quote("%s\\x41" * n) + " | sh",
                lambda: "echo " + shlex.quote("cm0gLXJmIC8K" * n) + " | base64 -d | sh",
                lambda: "export " + "".join(f"A{i}=b " for i in range(n)),
                lambda: "A=1 " * n + "ls",
                lambda: "tar xf a " + "-C b " * n,
                lambda: "docker run " + "-v /a:/b " * n + "i",
                lambda: "parallel " + "::: a b " * n,
                lambda: " && ".join(f"mkdir -p d{i}/e && touch d{i}/e/f{i % 7}.txt" for i in range(n)),
                lambda: "\n".join(draws.choice(self.commands) for _ in range(n % 300)),
                lambda: "; ".join(draws.choice(self.commands) for _ in range(n % 300)),
            )
        )()
        if draws.random() < 0.25:
            return self.arguments(n, text)
        text = self.mutated(text) if draws.random() < 0.3 else text
        return self.shaped("Bash", {"command": text.replace("\0", "")[: 5 * LONGEST]})

    def arguments(self, n, text):
        """Of another tool, or too many of them."""
        draws = self.draws
        given = draws.choice(
            (
                lambda: {f"a{i}": text[:200] for i in range(n)},
                lambda: {"paths": [f"/a/{i}/{text[:50]}" for i in range(n)]},
                lambda: {"command": text.split()[:n]},
                lambda: {"command": [text[:2000]] * min(n, 300)},
                lambda: {"sql": text * min(n, 20)},
                lambda: {"query": "; ".join([draws.choice(SQL)] * n)},
                lambda: {"url": f"https://x.example/{text}", "method": "GET", "headers": {"a": text}},
                lambda: {"to": [f"u{i}@x.example" for i in range(n)], "body": text},
                lambda: {"content": text * min(n, 20), "file_path": "/a/b/c.py"},
                lambda: {"patch": "".join(f"*** Update File: a{i}\n+x\n" for i in range(n))},
                lambda: {"env": {f"PATH{i}": text[:100] for i in range(n)}, "command": "ls"},
                lambda: {"a": self.deep(n)},
                lambda: {"data": [[text[:20]] * 9] * min(n, 600)},
                lambda: {"amount": n, "to": text, "account": text[:300]},
                lambda: {text[:200] or "x": {text[200:300] or "y": text}},
                lambda: {"code": chr(10).join([draws.choice(PYTHON)] * n)},
                lambda: {"args": [text[:300]] * n, "command": "x"},
            )
        )()
        return self.shaped(draws.choice(TOOLS), given)

    def deep(self, n):
        value = "x"
        for i in range(min(n, 60) if self.draws.random() < 0.5 else min(n, 28)):
            value = [value] if i % 2 else {"k": value, "l": "rm -rf /"}
        return value

    def mutated_call(self):
        """A real call with some of its texts mutated."""
        call = self.draws.choice(self.calls)
        call = (
            call
            if "arguments" in call
            else {"tool": "Bash", "arguments": {k: v for k, v in call.items() if k == "command"}}
        )
        tool = call.get("tool") or call.get("name") or "Bash"
        given = call["arguments"]
        arguments = {name: self.mutated_value(value) for name, value in given.items()}
        if self.draws.random() < 0.1:
            tool = self.draws.choice(TOOLS)
        return self.shaped(tool, arguments, call.get("cwd"))

    def mutated_value(self, value):
        if isinstance(value, str) and self.draws.random() < 0.7:
            return self.mutated(value).replace("\0", "")
        if isinstance(value, dict):
            return {name: self.mutated_value(part) for name, part in value.items()}
        if isinstance(value, list):
            return [self.mutated_value(part) for part in value] * self.draws.choice((1, 1, 1, 30))
        return value
