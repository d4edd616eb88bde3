"""Random numbers that depend on a counter and nothing else, in integer operators that every runtime has.

Philox-2x32 with 10 rounds (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3): a bijection
of two 32-bit words under a 32-bit key. Words are held in u64, where a product of two of them does not overflow; so the
numbers are the same bits wherever the graph runs.
"""

from __future__ import annotations

import numpy as np

from ..dtypes import u64
from ..model_builder import Builder, Tensor

MULTIPLIER = 0xD256D193
WEYL = 0x9E3779B9
ROUNDS = 10
_WORD = 0xFFFFFFFF


def philox(counter: np.ndarray, high: np.ndarray, key: int) -> tuple[np.ndarray, np.ndarray]:
    """The two words that `counter` and `high` become under `key`; all hold 32-bit words as u64."""
    left, right = counter.astype(np.uint64), high.astype(np.uint64)
    for index in range(ROUNDS):
        product = left * np.uint64(MULTIPLIER)
        left, right = (product >> np.uint64(32)) ^ np.uint64(_round_key(key, index)) ^ right, product & np.uint64(_WORD)
    return left, right


def stream_key(seed: int, stream: int) -> int:
    """The key of one of many independent streams of a seed."""
    words = np.array([stream & _WORD], np.uint64), np.array([seed >> 32 & _WORD], np.uint64)
    return int(philox(*words, seed & _WORD)[0][0])


def random_words(b: Builder, pairs: Tensor, high: Tensor, key: int) -> Tensor:
    """2 * `pairs` random 32-bit words as u64[2 * pairs]; `pairs` is one i64, `high` (u64) the counter's second word."""
    zero, one = b.const(np.array(0, np.int64)), b.const(np.array(1, np.int64))
    left = b.cast(b.range(zero, pairs, one), to=u64)
    right = b.expand(high, b.reshape(pairs, np.array([1], np.int64)))
    for index in range(ROUNDS):
        product = b.mul(left, _u64(MULTIPLIER))
        upper = b.bit_shift(product, _u64(32), direction="RIGHT")
        left, right = (
            b.bitwise_xor(b.bitwise_xor(upper, _u64(_round_key(key, index))), right),
            b.bitwise_and(product, _u64(_WORD)),
        )
    words: Tensor = b.concat(left, right, axis=0)
    return words


def keep_mask(b: Builder, like: Tensor, chance: Tensor, high: Tensor, key: int) -> Tensor:
    """bool, shaped like `like`: true with probability `chance` (f64, one number), rounded to a multiple of 2^-32."""
    two = np.array(2, np.int64)
    count = b.size(like)
    pairs = b.div(b.add(count, np.array(1, np.int64)), two)
    words = random_words(b, pairs, high, key)
    shape = b.shape(like)
    first = b.slice(words, np.array([0], np.int64), b.reshape(count, np.array([1], np.int64)))
    limit = b.cast(b.round(b.mul(chance, np.array(2.0**32))), to=u64)
    mask: Tensor = b.reshape(b.less(first, limit), shape)
    return mask


def _u64(word: int) -> np.ndarray:
    return np.array(word, np.uint64)


def _round_key(key: int, index: int) -> int:
    return key + index * WEYL & _WORD
