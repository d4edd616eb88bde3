"""Blocks between space and channels, and reductions that drop their dims."""

from __future__ import annotations

import pytest
from recomposition import becomes, model_of, stays

from tilewright import i64

BLOCKS = "recompose-depth-to-space"
DCR, CRD, TO_DEPTH = (0, 3, 4, 1, 5, 2), (0, 1, 4, 2, 5, 3), (0, 3, 5, 1, 2, 4)


def moved(b, x, middle, perm, end):
    return b.reshape(b.transpose(b.reshape(x, list(middle)), perm=perm), list(end))


FORMS = {
    "DCR": ((2, 12, 3, 5), (2, 2, 2, 3, 3, 5), DCR, (2, 3, 6, 10), "depth_to_space", "DCR"),
    "CRD": ((2, 12, 3, 5), (2, 3, 2, 2, 3, 5), CRD, (2, 3, 6, 10), "depth_to_space", "CRD"),
    "blocks of 3": ((1, 9, 2, 2), (1, 3, 3, 1, 2, 2), DCR, (1, 1, 6, 6), "depth_to_space", "DCR"),
    "open batch": (("n", 12, 3, 5), (0, 3, 2, 2, 3, 5), CRD, (0, 3, 6, 10), "depth_to_space", "CRD"),
    "to depth": ((2, 3, 6, 10), (2, 3, 3, 2, 5, 2), TO_DEPTH, (2, 12, 3, 5), "space_to_depth", None),
}


@pytest.mark.parametrize("form", FORMS)
def test_blocks(form):
    shape, middle, perm, end, name, mode = FORMS[form]
    after = becomes(model_of(lambda b, x: moved(b, x, middle, perm, end), shape), BLOCKS, [name], opsets=(11, 13, 17))
    (op,) = [op for op in after.walk() if op.name == name]
    assert mode is None or op.attr("mode") == mode
    assert op.attr("blocksize") == (3 if form == "blocks of 3" else 2)


WRONG = {
    "another permutation": ((2, 12, 3, 5), (2, 2, 2, 3, 3, 5), (0, 3, 5, 1, 4, 2), (2, 3, 10, 6)),
    "channels last in the block": ((2, 12, 6, 10), (2, 12, 3, 2, 5, 2), (0, 1, 3, 5, 2, 4), (2, 48, 3, 5)),
    "blocks that are no squares": ((2, 12, 3, 5), (2, 2, 3, 2, 3, 5), DCR, (2, 2, 6, 15)),
    "another end": ((2, 12, 3, 5), (2, 2, 2, 3, 3, 5), DCR, (2, 3, 10, 6)),
    "five dims at the end": ((2, 12, 3, 5), (2, 2, 2, 3, 3, 5), DCR, (2, 1, 3, 6, 10)),
    "blocks of 1": ((2, 12, 3, 5), (2, 1, 1, 12, 3, 5), DCR, (2, 12, 3, 5)),
    "dims that are taken apart otherwise": ((2, 12, 6, 10), (2, 2, 2, 3, 10, 6), DCR, (2, 3, 20, 12)),
}


@pytest.mark.parametrize("form", WRONG)
@pytest.mark.refusal
def test_what_moves_no_blocks(form):
    shape, middle, perm, end = WRONG[form]
    stays(model_of(lambda b, x: moved(b, x, middle, perm, end), shape), BLOCKS)


def test_a_middle_value_that_is_an_output():
    def build(b, x):
        middle = b.reshape(x, [2, 2, 2, 3, 3, 5])
        return b.reshape(b.transpose(middle, perm=DCR), [2, 3, 6, 10]), middle

    stays(model_of(build, (2, 12, 3, 5)), BLOCKS)


# ---- reductions ------------------------------------------------------------------------------------------------------

MEAN = "recompose-mean"
REDUCTIONS = {
    "global average pool, flatten": (lambda b, x: b.flatten(b.global_average_pool(x), axis=1), "reduce_mean"),
    "global average pool, squeeze": (lambda b, x: b.squeeze(b.global_average_pool(x), [2, 3]), "reduce_mean"),
    "global average pool, reshape": (lambda b, x: b.reshape(b.global_average_pool(x), [0, 6]), "reduce_mean"),
    "global max pool, flatten": (lambda b, x: b.flatten(b.global_max_pool(x)), "reduce_max"),
    "mean, flatten": (lambda b, x: b.flatten(b.reduce_mean(x, [2, 3])), "reduce_mean"),
    "mean, squeeze": (lambda b, x: b.squeeze(b.reduce_mean(x, [-1]), [3]), "reduce_mean"),
    "sum, squeeze": (lambda b, x: b.squeeze(b.reduce_sum(x, [1]), [1]), "reduce_sum"),
}


@pytest.mark.parametrize("form", REDUCTIONS)
def test_reductions_drop_their_dims(form):
    build, name = REDUCTIONS[form]
    becomes(model_of(build, (2, 6, 4, 5)), MEAN, [name], opsets=(13, 18))


KEPT = {
    "a dim of 1 of the operand is dropped": ((2, 1, 4, 5), lambda b, x: b.squeeze(b.reduce_mean(x, [2, 3]), [1])),
    "one of two dims is dropped": ((2, 6, 4, 5), lambda b, x: b.squeeze(b.reduce_mean(x, [2, 3]), [3])),
    "another shape": ((2, 6, 4, 5), lambda b, x: b.reshape(b.global_average_pool(x), [3, 4])),
    "the pool is an output": ((2, 6, 4, 5), lambda b, x: (lambda p: (b.flatten(p), p))(b.global_average_pool(x))),
    "flatten from the last axis": ((2, 6, 4, 5), lambda b, x: b.flatten(b.global_average_pool(x), axis=3)),
}


@pytest.mark.parametrize("form", KEPT)
@pytest.mark.refusal
def test_reductions_that_stay(form):
    shape, build = KEPT[form]
    stays(model_of(build, shape), MEAN)


def test_a_reduction_of_integers():
    becomes(model_of(lambda b, x: b.squeeze(b.reduce_max(x, [1]), [1]), (2, 3), dtype=i64), MEAN, ["reduce_max"])
