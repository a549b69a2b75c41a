"""Calls that nobody wrote: random JSON, random bytes, mutated real ones; others each time, and a failure names its
seed."""

import json
import os
import random
import string
import time
from pathlib import Path

import pytest

pytest.importorskip("tree_sitter_bash", reason="the extra `gate` is not installed")

from gradproof.gate.calls import Call, parse
from gradproof.gate.reading import act_texts, read

CALLS = [json.loads(line)["call"] for line in (Path(__file__).parent / "calls.jsonl").read_text().splitlines()]
PIECES = [
    *(
        "$(",
        ")",
        "`",
        "'",
        '"',
        "\\",
        "\n",
        ";",
        "&&",
        "||",
        "|",
        "&",
        ">",
        "<<EOF\n",
        "EOF\n",
        "{",
        "}",
        "((",
        "))",
        "$X",
    ),
    *(
        "${X:-",
        "<(",
        "[[",
        "]]",
        "if ",
        "then ",
        "fi",
        "for i in ",
        "do ",
        "done",
        "case x in ",
        "esac",
        "function f",
        "#",
    ),
    *(
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
        "\t",
        "\r",
        "=",
        "-",
    ),
]
MOST_SECONDS = 0.05


def mutated(draws, text):
    """A few pieces put in, cut out, doubled, swapped."""
    for _ in range(draws.randint(1, 6)):
        i, j = sorted(draws.randrange(len(text) + 1) for _ in range(2))
        way = draws.randrange(5)
        if way == 0:
            text = text[:i] + draws.choice(PIECES) + text[i:]
        elif way == 1:
            text = text[:i] + text[j:]
        elif way == 2:
            text = text[:j] + text[i:j] * draws.randint(1, 40) + text[j:]
        elif way == 3:
            text = text[:i] + text[i:j][::-1] + text[j:]
        else:
            text = text[:i] + draws.choice(PIECES) * draws.randint(1, 200) + text[i:]
    return text.replace("\0", "")[:200_000]


def random_value(draws, depth=0):
    way = draws.randrange(7 if depth < 4 else 4)
    if way == 0:
        return draws.choice([None, True, False, draws.randint(-10, 10**6), draws.random()])
    if way < 4:
        return "".join(draws.choices(string.printable, k=draws.randint(0, 30)))
    if way == 4:
        return [random_value(draws, depth + 1) for _ in range(draws.randint(0, 4))]
    names = ("command", "path", "url", "to", "amount", "query", "sql", "", "@x", "cwd", "args", "content", "method")
    return {draws.choice(names): random_value(draws, depth + 1) for _ in range(draws.randint(0, 5))}


def made(draws):
    """A call of one of three kinds."""
    way = draws.randrange(4)
    if way == 0:
        arguments = random_value(draws)
        tool = draws.choice(["Bash", "Write", "http_request", "run_sql", "x", "mcp__a__b", "send_email", "delete_file"])
        return Call(
            tool, arguments if isinstance(arguments, dict) else {"command": arguments}, draws.choice(["", "/a/b"])
        )
    if way == 1:
        raw = bytes(draws.randrange(1, 256) for _ in range(draws.randint(0, 400))).decode("latin-1")
        return Call("Bash", {"command": raw}, "/a/b")
    call = parse(draws.choice(CALLS))
    name, value = draws.choice(list(call.arguments.items())) if call.arguments else ("command", "")
    if not isinstance(value, str):
        return call
    return Call(call.tool, {**call.arguments, name: mutated(draws, value)}, call.cwd, call.history)


@pytest.mark.parametrize("count", [1000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_any_call_is_read(count):
    seed = int.from_bytes(os.urandom(6), "big")
    draws = random.Random(seed)
    read(Call("Bash", {"command": "ls; psql -c 'select 1'"}))  # imports
    for i in range(count):
        call = made(draws)
        started = time.process_time()
        try:
            done = read(call)
            texts = act_texts(call, done.acts)
        except Exception as error:
            pytest.fail(f"seed {seed}, call {i}: {error!r}: {call!r:.2000}")
        spent = time.process_time() - started
        assert done.acts and len(texts) == len(done.acts)
        outcome = done.verdicts[done.worst].outcome
        assert outcome != "allow" or all(act.effect != "unknown" for act in done.acts), (
            f"seed {seed}, call {i}: {call!r:.2000}"
        )
        if count > 1000 and spent > MOST_SECONDS:  # perhaps something else ran meanwhile: the same again must be quick
            again = min(_seconds(call) for _ in range(3))
            assert again < MOST_SECONDS, f"seed {seed}, call {i}: {again * 1000:.0f} ms: {call!r:.2000}"


def _seconds(call):
    started = time.process_time()
    read(call)
    return time.process_time() - started
