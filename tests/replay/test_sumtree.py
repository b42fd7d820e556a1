import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskrl.replay.sumtree import SumTree


def tree_of(leaves):
    tree = SumTree(len(leaves))
    tree.set(np.arange(len(leaves)), leaves)
    return tree


def leaves_of(tree):
    return tree[np.arange(len(tree))].tolist()


# Sums of small whole numbers are exact, so intervals are too; zeros are common because they are what must not be found.
whole_numbers = st.lists(st.sampled_from([0, 0, 1, 2, 3, 7]), min_size=1, max_size=40)
any_numbers = st.lists(st.just(0.0) | st.floats(0, 1e300), min_size=1, max_size=40)


@settings(max_examples=100, deadline=None)
@given(size=st.integers(1, 40), data=st.data())
def test_writes_equal_those_to_a_list_and_sums_do_not_depend_on_their_order(size, data):
    tree, expected = SumTree(size), [0.0] * size
    pairs = st.lists(st.tuples(st.integers(0, size - 1), st.floats(0, 1e6)), max_size=10)
    for batch in data.draw(st.lists(pairs, max_size=6)):
        tree.set([index for index, _ in batch], [value for _, value in batch])
        for index, value in reversed(batch):  # the first of several writes to one leaf is the one that stays
            expected[index] = value
    assert leaves_of(tree) == expected
    assert tree.total == pytest.approx(sum(expected))
    loaded = tree_of([1.0] * size)
    loaded.load(expected)
    assert (loaded._nodes == tree._nodes).all()  # to the last bit: a resumed replay draws the same


def test_the_first_of_several_values_for_a_leaf_counts():
    tree = SumTree(3)
    tree.set([2, 0, 2, 2], [5, 1, 6, 7])
    assert leaves_of(tree) == [1, 0, 5]
    assert tree.total == 6


def test_sums_do_not_drift():
    tree, generator = SumTree(5), np.random.default_rng(0)
    for _ in range(1000):
        tree.set(generator.integers(0, 5, 3), 10 ** generator.uniform(-6, 6, 3))
    tree.set(np.arange(5), [1, 2, 3, 4, 5])
    assert tree.total == 15  # subtracting what was replaced would leave about 1e-9 of the millions


@settings(max_examples=200, deadline=None)
@given(leaves=whole_numbers)
def test_every_target_finds_the_leaf_whose_interval_holds_it(leaves):
    total = sum(leaves)
    if total == 0:
        return
    by_hand = [index for index, leaf in enumerate(leaves) for _ in range(2 * leaf)]  # at 0, ½, 1, 1½, …
    below_the_borders = np.nextafter(np.arange(1, total + 1), 0)
    tree = tree_of(leaves)
    assert tree.find(np.arange(2 * total) / 2).tolist() == by_hand
    assert tree.find(below_the_borders).tolist() == by_hand[::2]


def test_intervals_are_closed_below_and_open_above():
    tree = tree_of([0, 2, 0, 0, 1, 0])
    assert tree.find([0, 1.999, 2, 2.999]).tolist() == [1, 1, 4, 4]


@settings(max_examples=200, deadline=None)
@given(leaves=any_numbers, fractions=st.lists(st.floats(0, 1), max_size=10))
def test_a_leaf_of_zero_is_never_found_whatever_the_rounding(leaves, fractions):
    tree = tree_of(leaves)
    if tree.total == 0:
        return
    borders = np.cumsum(leaves)  # summed in another order than in the tree: off by some roundings
    borders = np.concatenate([borders, np.nextafter(borders, 0), np.nextafter(borders, np.inf)])
    targets = np.concatenate([[0, tree.total], np.array(fractions) * tree.total, borders.clip(0, tree.total)])
    found = tree.find(targets)
    assert (tree[found] > 0).all()
    before = np.array([sum(leaves[:index]) for index in found])
    slack = 1e-12 * tree.total
    assert (before <= targets + slack).all()
    assert (targets <= before + tree[found] + slack).all()


def test_a_rest_that_rounding_made_too_large_stays_with_the_last_leaf_above_zero():
    leaves = [0.1, 0.2, 0.3, 0.0]  # (0.1 + 0.2) + 0.3 > 0.6: less 0.1 + 0.2, the total leaves more than 0.3
    tree = tree_of(leaves)
    assert tree.total - (leaves[0] + leaves[1]) > leaves[2]
    assert tree.find([tree.total]).tolist() == [2]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 1000])
def test_the_forecast_is_what_is_allocated(size):
    assert SumTree.forecast(size) == SumTree(size).nbytes
    assert len(SumTree(size)) == size
    assert SumTree.forecast(size) <= 32 * size


def test_a_tree_of_one_leaf():
    tree = tree_of([3.0])
    assert tree.total == 3
    assert tree.find([0, 1, 3]).tolist() == [0, 0, 0]


def test_no_indices_and_no_targets_are_fine():
    tree = tree_of([1, 2])
    tree.set([], [])
    assert tree[[]].shape == tree.find([]).shape == (0,)


@pytest.mark.parametrize("bad", [-1e-9, np.nan, np.inf, 1.7e308], ids=["negative", "nan", "infinite", "sum overflows"])
def test_a_value_that_has_no_proportion_is_refused_and_leaves_no_trace(bad):
    tree = tree_of([1, 2, 3])
    for write in (lambda: tree.set([0, 1], [9, bad]), lambda: tree.load([9, bad])):
        with pytest.raises(ValueError, match="finite, not negative and at most"):
            write()
    assert leaves_of(tree) == [1, 2, 3]
    assert tree.total == 6


@pytest.mark.parametrize("bad", [-1, 3])  # the tree has room for a fourth
def test_an_index_beyond_the_leaves_is_refused(bad):
    tree = tree_of([1, 2, 3])
    with pytest.raises(IndexError, match=r"lie in \[0, 3\)"):
        tree[[0, bad]]
    with pytest.raises(IndexError, match=r"lie in \[0, 3\)"):
        tree.set([0, bad], [1, 1])


@pytest.mark.parametrize("bad", [-1e-9, 6.001, np.nan])
def test_a_target_outside_the_total_is_refused(bad):
    with pytest.raises(ValueError, match=r"lie in \[0, 6\.0\]"):
        tree_of([1, 2, 3]).find([0, bad])


def test_other_mistakes_are_refused():
    tree = tree_of([0, 0, 0])
    with pytest.raises(ValueError, match="All leaves are 0"):
        tree.find([0])
    with pytest.raises(ValueError, match=r"indices \(2,\) and values \(1,\)"):
        tree.set([0, 1], [1])
    with pytest.raises(ValueError, match="4 leaves do not fit into a tree of 3"):
        tree.load([1, 2, 3, 4])
    with pytest.raises(ValueError, match="size=0"):
        SumTree(0)
