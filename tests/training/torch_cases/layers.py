"""Normalizations, losses, recurrent networks, attention, and whole layers of `tilewright.nn`."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import Draw, case

CHANNELS = {"s": (3,), "c": (3,), "m": (3,), "v": Draw((3,), low=0.5, high=2.0)}
for shape in [(4, 3), (3, 3, 4), (2, 3, 2, 2), (2, 3, 2, 2, 2)]:
    case(
        f"batch_normalization {shape}",
        lambda b, **x: b.batch_normalization(*x.values(), epsilon=1e-3),
        lambda t, x, s, c, m, v: (x - _wide(m, x)) / (_wide(v, x) + 1e-3).sqrt() * _wide(s, x) + _wide(c, x),
        x=shape,
        **CHANNELS,
    )
    case(
        f"batch_normalization in training {shape}",
        lambda b, x, s, c: b.batch_normalization(
            x, s, c, np.zeros(3, np.float32), np.ones(3, np.float32), training_mode=1, outputs=3
        )[0],
        lambda t, x, s, c: t.nn.functional.batch_norm(x, t.zeros(3), t.ones(3), s, c, training=True),
        x=shape,
        s=(3,),
        c=(3,),
    )


def _wide(vector: Any, like: Any) -> Any:
    """[channels] beside dim 1 of `like`."""
    return vector.reshape(1, -1, *[1] * (like.dim() - 2))


case(
    "instance_normalization",
    lambda b, x, s, c: b.instance_normalization(x, s, c),
    lambda t, x, s, c: t.nn.functional.instance_norm(x, weight=s, bias=c),
    x=(2, 4, 3, 2),
    s=(4,),
    c=(4,),
)
case(
    "group_normalization",
    lambda b, x, s, c: b.group_normalization(x, s, c, num_groups=2),
    lambda t, x, s, c: t.nn.functional.group_norm(x, 2, s, c),
    x=(2, 4, 3, 2),
    s=(4,),
    c=(4,),
)
for axis, shape in [(-1, (4,)), (1, (3, 4)), (0, (2, 3, 4))]:
    case(
        f"layer_normalization {axis}",
        lambda b, x, s, c, a=axis: b.layer_normalization(x, s, c, axis=a),
        lambda t, x, s, c, shape=shape: t.nn.functional.layer_norm(x, shape, s, c),
        x=(2, 3, 4),
        s=shape,
        c=shape,
    )
    case(
        f"rms_normalization {axis}",
        lambda b, x, s, a=axis: b.rms_normalization(x, s, axis=a, epsilon=1e-4),
        lambda t, x, s, shape=shape: t.nn.functional.rms_norm(x, shape, s, 1e-4),
        x=(2, 3, 4),
        s=shape,
    )
case(
    "layer_normalization of long rows",
    lambda b, x, s: b.layer_normalization(x, s),
    lambda t, x, s: t.nn.functional.layer_norm(x, (300,), s),
    x=(5, 300),
    s=(300,),
)
for p in (1, 2):
    case(
        f"lp_normalization {p}",
        lambda b, x, p=p: b.lp_normalization(x, p=p, axis=1),
        lambda t, x, p=p: t.nn.functional.normalize(x, p, 1, eps=0.0),
        x=(2, 3, 4),
    )
case(
    "mean_variance_normalization",
    lambda b, x: b.mean_variance_normalization(x, axes=[0, 2]),
    lambda t, x: (x - x.mean((0, 2), keepdim=True)) / x.std((0, 2), correction=0, keepdim=True),
    x=(2, 3, 4),
)
for size in (1, 3, 5):
    case(
        f"lrn {size}",
        lambda b, x, n=size: b.lrn(x, size=n, alpha=0.3, beta=0.6, bias=1.5),
        lambda t, x, n=size: t.nn.functional.local_response_norm(x, n, 0.3, 0.6, 1.5),
        x=(2, 6, 3),
    )
for axis in (0, 1, -1):
    case(f"softmax {axis}", lambda b, x, a=axis: b.softmax(x, axis=a), lambda t, x, a=axis: x.softmax(a), x=(2, 3, 4))
    case(
        f"log_softmax {axis}",
        lambda b, x, a=axis: b.log_softmax(x, axis=a),
        lambda t, x, a=axis: x.log_softmax(a),
        x=(2, 3, 4),
    )
case(
    "softmax of a masked row",
    lambda b, x: b.softmax(b.where(np.array([True, False, True]), x, np.float32(-np.inf))),
    lambda t, x: x.masked_fill(t.tensor([False, True, False]), -np.inf).softmax(-1),
    x=(4, 3),
)
case(
    "dropout without training",
    lambda b, x: b.mul(b.dropout(x, np.float32(0.5)), x),
    lambda t, x: t.nn.functional.dropout(x, 0.5, training=False) * x,
    x=(3, 4),
)

# ---- losses ----------------------------------------------------------------------------------------------------------

WEIGHTS = np.array([0.5, 2.0, 1.5], np.float32)
for shape in [(4, 3), (2, 3, 4), (2, 3, 2, 2)]:
    labels = np.random.RandomState(3).randint(0, 3, (shape[0], *shape[2:]))
    for reduction in ("none", "sum", "mean"):
        for weighted in (False, True):
            for ignored in (-100, 1):
                options = {"reduction": reduction, "ignore_index": ignored}
                extra = [WEIGHTS] if weighted else []
                for ours, theirs in [
                    ("softmax_cross_entropy_loss", "cross_entropy"),
                    ("negative_log_likelihood_loss", "nll_loss"),
                ]:
                    case(
                        f"{theirs} {shape} {reduction} {weighted} {ignored}",
                        lambda b, x, ours=ours, y=labels, o=options, extra=extra: b.create(ours, x, y, *extra, **o),
                        lambda t, x, theirs=theirs, y=labels, o=options, extra=extra: getattr(t.nn.functional, theirs)(
                            x, t.from_numpy(y), *map(t.from_numpy, extra), **o
                        ),
                        x=shape,
                    )


def _named(name: str, b: Any, x: Any, target: np.ndarray, **options: Any) -> Any:
    from tilewright.graph.nn import losses

    return getattr(losses, name)(b, x, b.const(target), **options)


TARGET = np.random.RandomState(4).uniform(0.1, 0.9, (3, 4)).astype(np.float32)
for reduction in ("none", "sum", "mean"):
    for ours, theirs, draw in [
        ("mse", "mse_loss", Draw((3, 4))),
        ("l1", "l1_loss", Draw((3, 4))),
        ("bce", "binary_cross_entropy", Draw((3, 4), low=0.1, high=0.9)),
        ("bce_logits", "binary_cross_entropy_with_logits", Draw((3, 4), 2.0)),
    ]:
        case(
            f"{theirs} {reduction}",
            lambda b, x, n=ours, r=reduction: _named(n, b, x, TARGET, reduction=r),
            lambda t, x, n=theirs, r=reduction: getattr(t.nn.functional, n)(x, t.from_numpy(TARGET), reduction=r),
            x=draw,
        )
case(
    "cross_entropy smoothed",
    lambda b, x: _named("cross_entropy", b, x, np.array([0, 2, 1]), label_smoothing=0.1),
    lambda t, x: t.nn.functional.cross_entropy(x, t.tensor([0, 2, 1]), label_smoothing=0.1),
    x=(3, 4),
)

# ---- recurrent networks ----------------------------------------------------------------------------------------------

LENGTH, BATCH, SIZE, HIDDEN = 5, 2, 3, 4
# Where the gates of ONNX are in PyTorch's order: of an LSTM i o f c and i f g o; of a GRU z r h and r z n.
GATES = {"rnn": [0], "gru": [1, 0, 2], "lstm": [0, 2, 3, 1]}


def _recurrent(t: Any, name: str, directions: int, x: Any, w: Any, r: Any, bias: Any) -> Any:
    count, order = len(GATES[name]), GATES[name]
    rows = [gate * HIDDEN + k for gate in order for k in range(HIDDEN)]
    module = getattr(t.nn, name.upper())(SIZE, HIDDEN, bidirectional=directions == 2)
    given = {}
    for direction in range(directions):
        suffix = "_l0_reverse" if direction else "_l0"
        half = count * HIDDEN
        given["weight_ih" + suffix], given["weight_hh" + suffix] = w[direction][rows], r[direction][rows]
        given["bias_ih" + suffix] = bias[direction][:half][rows]
        given["bias_hh" + suffix] = bias[direction][half:][rows]
    found, last = t.func.functional_call(module, given, (x,))
    last = last if isinstance(last, tuple) else (last,)
    return [found.reshape(LENGTH, BATCH, directions, HIDDEN).transpose(1, 2), *last]


for name, order in GATES.items():
    for directions in (1, 2):
        attributes: dict[str, Any] = {"hidden_size": HIDDEN, "direction": ("forward", "bidirectional")[directions - 1]}
        attributes |= {"linear_before_reset": 1} if name == "gru" else {}
        gates = len(order)
        case(
            f"{name} {directions}",
            lambda b, name=name, a=attributes, **x: list(
                b.create(name, *x.values(), outputs=3 if name == "lstm" else 2, **a)
            ),
            lambda t, name=name, d=directions, **x: _recurrent(t, name, d, *x.values()),
            x=(LENGTH, BATCH, SIZE),
            w=Draw((directions, gates * HIDDEN, SIZE), 0.5),
            r=Draw((directions, gates * HIDDEN, HIDDEN), 0.5),
            bias=Draw((directions, 2 * gates * HIDDEN), 0.3),
        )

# ---- attention -------------------------------------------------------------------------------------------------------


def _attend(t: Any, q: Any, k: Any, v: Any, **options: Any) -> Any:
    return t.nn.functional.scaled_dot_product_attention(q, k, v, **options)


QKV = {"q": (2, 4, 6, 8), "k": (2, 4, 6, 8), "v": (2, 4, 6, 8)}
case("attention", lambda b, q, k, v: b.attention(q, k, v), _attend, **QKV)
case(
    "attention, causal",
    lambda b, q, k, v: b.attention(q, k, v, is_causal=1),
    lambda t, q, k, v: _attend(t, q, k, v, is_causal=True),
    **QKV,
)
case(
    "attention, few queries and a scale",
    lambda b, q, k, v: b.attention(q, k, v, scale=0.3),
    lambda t, q, k, v: _attend(t, q, k, v, scale=0.3),
    q=(1, 2, 3, 4),
    k=(1, 2, 7, 4),
    v=(1, 2, 7, 5),
)
case(
    "attention, shared keys",
    lambda b, q, k, v: b.attention(q, k, v),
    lambda t, q, k, v: _attend(t, q, k, v, enable_gqa=True),
    q=(1, 4, 3, 8),
    k=(1, 2, 5, 8),
    v=(1, 2, 5, 8),
)
LOOK = np.tril(np.ones((6, 6), bool), 1)
case(
    "attention, mask",
    lambda b, q, k, v: b.attention(q, k, v, LOOK),
    lambda t, q, k, v: _attend(t, q, k, v, attn_mask=t.from_numpy(LOOK)),
    **QKV,
)
case(
    "attention, trained bias",
    lambda b, q, k, v, bias: b.attention(q, k, v, bias),
    lambda t, q, k, v, bias: _attend(t, q, k, v, attn_mask=bias),
    bias=(1, 4, 6, 6),
    **QKV,
)
case(
    "attention, softcap",
    lambda b, q, k, v: b.attention(q, k, v, softcap=1.5),
    lambda t, q, k, v: (1.5 * ((q @ k.mT / 8**0.5) / 1.5).tanh()).softmax(-1) @ v,
    **QKV,
)
case(
    "attention, packed heads",
    lambda b, q, k, v: b.attention(q, k, v, q_num_heads=4, kv_num_heads=2),
    lambda t, q, k, v: (
        _attend(t, *(x.unflatten(2, (-1, 4)).transpose(1, 2) for x in (q, k, v)), enable_gqa=True)
        .transpose(1, 2)
        .flatten(2)
    ),
    q=(2, 3, 16),
    k=(2, 5, 8),
    v=(2, 5, 8),
)
ANGLES = np.random.RandomState(5).uniform(0, 6, (5, 2)).astype(np.float32)
POSITIONS = np.array([[0, 2, 4]])


def _rotated(t: Any, x: Any) -> Any:
    angles = t.from_numpy(ANGLES)[t.from_numpy(POSITIONS)][:, None]
    left, right = x.chunk(2, -1)
    return t.cat([left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()], -1)


case(
    "rotary_embedding",
    lambda b, x: b.rotary_embedding(x, np.cos(ANGLES), np.sin(ANGLES), POSITIONS),
    _rotated,
    x=(1, 2, 3, 4),
)
case(
    "linear_attention",
    lambda b, q, k, v: b.linear_attention(q, k, v, q_num_heads=2, kv_num_heads=2, update_rule="linear", scale=1.0)[0],
    lambda t, q, k, v: ((_split(q) @ _split(k).mT).tril() @ _split(v)).transpose(1, 2).flatten(2),
    q=(1, 3, 4),
    k=(1, 3, 4),
    v=(1, 3, 4),
)


def _split(x: Any) -> Any:
    return x.unflatten(2, (2, -1)).transpose(1, 2)


case(
    "causal_conv_with_state",
    lambda b, x, w, bias, past: b.causal_conv_with_state(x, w, bias, past)[0],
    lambda t, x, w, bias, past: t.nn.functional.conv1d(t.cat([past, x], 2), w, bias, groups=2),
    x=(1, 2, 5),
    w=(2, 1, 3),
    bias=(2,),
    past=(1, 2, 2),
)
