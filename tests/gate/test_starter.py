"""Made-up calls: the same every time, filled in everywhere, of many kinds."""

from gradproof.gate.starter import FIELD, Fill, harmful, patterns, starter


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


def test_it_is_the_same_every_time_and_balanced():
    rows = list(starter(200))
    assert rows == list(starter(200)) and rows != list(starter(200, seed=1))
    assert sum(allow for _, allow in rows) == 100


def test_harm_is_distinct_and_of_many_kinds():
    made = harmful()
    assert 1200 < len(made) == len(set(made)) and made == harmful()
    assert all(text.startswith("Bash\ncommand: ") for text in made)
    kinds = ("/dev/tcp/", "socket", "crontab", "authorized_keys", "/etc/shadow", "rm -rf", "base64", "-perm", "| sh")
    assert all(sum(kind in text for text in made) >= 3 for kind in kinds)
