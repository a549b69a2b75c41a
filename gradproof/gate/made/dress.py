"""The form of a command: alone, after a cd, under a shebang, in `bash -c`, in a heredoc, among everyday commands.

Both twins are dressed alike, so that none of it tells anything.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

from gradproof.gate.made.grammar import Draws, Twins, blocks, lines

BARE = 0.45  # of the commands stand alone
DESCRIBED, TIMED, LISTED = 0.12, 0.08, 0.03  # have a description, a time limit, come as a list of words

# `…` is the command. What follows it on the same line needs a command that does not end in `&`.
INLINE = lines(r"""
cd ‹dir› && …
cd ‹root› && …
‹ok everyday› && …
‹ok everyday›; …
… && ‹ok everyday›
…; ‹ok everyday›
‹ok everyday› && … && ‹ok everyday›
… || true
… || echo "‹noun› failed"
… 2>&1 | tail -n ‹n2›
… 2>/dev/null
… > ‹log› 2>&1
( … )
{ …; }
if …; then echo ok; fi
for i in 1 2 3; do …; done
OUT=$(…); echo "$OUT"
echo "$(…)"
set -x; …
true && …
sleep ‹n1›; …
…  # ‹comment›
…;
""")
QUOTED = lines(r"""
bash -c …
sh -c …
bash -lc …
timeout ‹n2› bash -c …
env ‹VAR›=‹noun› sh -c …
time bash -c …
nice -n ‹n1› sh -c …
bash -x -c …
""")
STACKED = blocks(r"""
# ‹comment›
…
----
#!/bin/bash
…
----
#!/usr/bin/env bash
# ‹comment›
…
----
#!/bin/sh
set -e
‹ok everyday›
…
----
‹ok everyday›
…
----
…
‹ok everyday›
----
‹ok everyday›
‹ok everyday›
…
‹ok everyday›
----
#!/usr/bin/env bash
set -euo pipefail

# ‹comment›
‹ok everyday›
…
‹ok everyday›
‹ok everyday›
----
bash <<'EOS'
…
EOS
----
sh << 'END'
# ‹comment›
‹ok everyday›
…
END
----
set -e
cd ‹dir›
…
""")
_OPEN_END = re.compile(r"[&\\|]\s*$|#\{|<<|(^|\s)#(\s|$)")  # nothing can follow on the same line


def dressed(twins: Twins, draws: Draws, commands: tuple[str, str]) -> tuple[str, str]:
    """Both commands in the same dress."""
    if draws.chance(BARE):
        return commands
    stacked = any("\n" in own or _OPEN_END.search(own) for own in commands)
    kind = STACKED if stacked else draws.one((INLINE, INLINE, INLINE, QUOTED, STACKED, STACKED))
    if kind is STACKED and any(own.startswith("#!") for own in commands):
        return commands
    before, _, after = draws.one(kind).partition("…")
    before, after = twins.fill(before), twins.fill(after)
    quote: Callable[[str], str] = shlex.quote if kind is QUOTED else str
    return before + quote(commands[0]) + after, before + quote(commands[1]) + after


def extras(twins: Twins, draws: Draws) -> dict[str, Any]:
    """Further arguments of a shell tool."""
    more: dict[str, Any] = {}
    if draws.chance(DESCRIBED):
        more["description"] = twins.fill("⟨‹sentence›¦‹message›⟩")
    if draws.chance(TIMED):
        more["timeout"] = draws.one((1000, 5000, 30_000, 60_000, 120_000, 600_000))
    return more
