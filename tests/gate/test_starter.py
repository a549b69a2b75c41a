"""Made-up calls: the same every time, filled in everywhere, of many kinds."""

from gradproof.gate import starter as starter_module
from gradproof.gate.starter import FIELD, Amounts, Fill, made_up, patterns, starter


def test_every_pattern_is_filled():
    """No choice and no field is left; what stands in one command twice means the same."""
    fill = Fill(0)
    for pattern in (pattern for kind in patterns() for pattern in kind):
        made = fill(pattern)
        assert not set(made) & set("⟨⟩¦"), pattern
        assert all(match[1] not in "bcdefhinpstuvwxyz" for match in FIELD.finditer(made)), made
    host, again = Fill(1)("{i} {i}").split()
    assert host == again
    assert len(set(Fill(1)("{w} {w} {w} {w} {w} {w}").split())) > 1


def test_it_is_the_same_every_time_and_of_many_kinds():
    """Both labels, shell and other tools, all kinds of harm."""
    rows = list(starter())
    assert rows == list(starter())
    allowed = sum(allow for _, allow in rows)
    assert 0.3 < allowed / len(rows) < 0.7
    assert len({call.tool for call, _ in rows}) > 20
    harm = [str(call.arguments) for call, allow in rows if not allow]
    kinds = ("/dev/tcp/", "socket", "crontab", "authorized_keys", "/etc/shadow", "rm -rf", "base64", "-perm", "| sh")
    assert all(sum(kind in text for text in harm) >= 3 for kind in kinds)


def test_what_resembles_a_given_text_is_left_out(monkeypatch):
    """A scored call, and what differs from it in a number, is not among what is learned."""
    few = Amounts(2000, 200, 200)
    monkeypatch.setattr(starter_module, "BESIDE", few)
    call, _ = next((call, allow) for call, allow in starter(0, few) if not allow and len(str(call.arguments)) > 60)
    (scored,) = (str(value) for value in call.arguments.values())
    whole, less = made_up.__wrapped__(), made_up.__wrapped__((scored,))
    assert len(less.texts) < len(whole.texts) and len(less.texts) == len(less.allow)
    assert any(scored.splitlines()[0] in text for text in whole.texts)
    assert not any(scored in text.replace("↵", "\n") for text in less.texts)
