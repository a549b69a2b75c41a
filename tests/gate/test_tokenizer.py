from hypothesis import given
from hypothesis import strategies as st

from gradproof.gate import tokenizer
from gradproof.gate.tokenizer import PATH, VOCABULARY, Tokenizer


@given(st.text(max_size=200))
def test_nothing_is_out_of_vocabulary(text):
    """Every text comes back exactly, whatever its characters."""
    own = tokenizer.default()
    tokens = own.encode(text)
    assert own.decode(tokens) == text and all(0 <= token < own.size for token in tokens)


def test_the_file_is_what_training_gives(tmp_path):
    """A change of the corpus without its tokenizer, or the other way round, would leave the two apart."""
    fresh = tmp_path / "tokenizer.json"
    fresh.write_text(tokenizer.train(), encoding="utf-8")
    assert fresh.read_text(encoding="utf-8") == PATH.read_text(encoding="utf-8")
    assert Tokenizer(fresh).size == VOCABULARY


def test_shell_text_is_short_in_tokens():
    """Words, flags and paths of a shell are mostly one token each; bytes would be five times as many."""
    text = "sudo find /var/log -name '*.log' -type f -exec grep -i error {} | sort | head -n 20 > /tmp/output.txt"
    assert len(tokenizer.default().encode(text)) < len(text) / 2.2
