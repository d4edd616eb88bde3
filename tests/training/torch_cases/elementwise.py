"""Functions of elements, with broadcasting; choices at and around their borders."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import Draw, case

SHAPES = [(3, 4), (), (2, 1, 5)]
POSITIVE, INSIDE = {"low": 0.1, "high": 2.0}, {"low": -0.9, "high": 0.9}
# Name in ONNX, name in torch, and where the numbers come from.
FUNCTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("abs", "abs", {}),
    ("neg", "neg", {}),
    ("exp", "exp", {}),
    ("sin", "sin", {}),
    ("cos", "cos", {}),
    ("tan", "tan", {"low": -1.2, "high": 1.2}),
    ("asin", "asin", INSIDE),
    ("acos", "acos", INSIDE),
    ("atan", "atan", {}),
    ("sinh", "sinh", {}),
    ("cosh", "cosh", {}),
    ("tanh", "tanh", {}),
    ("asinh", "asinh", {}),
    ("acosh", "acosh", {"low": 1.1, "high": 3.0}),
    ("atanh", "atanh", INSIDE),
    ("erf", "erf", {}),
    ("sqrt", "sqrt", POSITIVE),
    ("reciprocal", "reciprocal", POSITIVE),
    ("log", "log", POSITIVE),
    ("relu", "relu", {}),
    ("sigmoid", "sigmoid", {"scale": 3.0}),
]
ACTIVATIONS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("softplus", "softplus", {}, {}),
    ("softsign", "softsign", {}, {}),
    ("mish", "mish", {}, {}),
    ("elu", "elu", {"alpha": 0.4}, {"alpha": 0.4}),
    ("selu", "selu", {}, {}),
    ("celu", "celu", {"alpha": 1.5}, {"alpha": 1.5}),
    ("leaky_relu", "leaky_relu", {"alpha": 0.2}, {"negative_slope": 0.2}),
    ("gelu", "gelu", {}, {}),
    ("gelu", "gelu", {"approximate": "tanh"}, {"approximate": "tanh"}),
    ("swish", "silu", {}, {}),
    ("hard_sigmoid", "hardsigmoid", {"alpha": 1 / 6, "beta": 0.5}, {}),
    ("hard_swish", "hardswish", {}, {}),
    ("shrink", "hardshrink", {"lambd": 0.7}, {"lambd": 0.7}),
    ("shrink", "softshrink", {"lambd": 0.4, "bias": 0.4}, {"lambd": 0.4}),
]

for ours, theirs, draw in FUNCTIONS:
    for shape in SHAPES:
        case(
            f"{ours} {shape}",
            lambda b, x, ours=ours: b.create(ours, x),
            lambda t, x, theirs=theirs: getattr(t, theirs)(x),
            x=Draw(shape, **draw),
        )
for ours, theirs, attributes, options in ACTIVATIONS:
    for shape in SHAPES:
        case(
            f"{ours} {attributes} {shape}",
            lambda b, x, ours=ours, attributes=attributes: b.create(ours, x, **attributes),
            lambda t, x, theirs=theirs, options=options: getattr(t.nn.functional, theirs)(x, **options),
            x=Draw(shape, scale=3.0),
        )

case("swish with alpha", lambda b, x: b.swish(x, alpha=0.7), lambda t, x: x * t.sigmoid(0.7 * x), x=(3, 4))
case(
    "hard_sigmoid falling",
    lambda b, x: b.hard_sigmoid(x, alpha=-0.3, beta=0.4),
    lambda t, x: (0.4 - 0.3 * x).clamp(0, 1),
    x=Draw((5, 4), scale=3.0),
)
case(
    "thresholded_relu",
    lambda b, x: b.thresholded_relu(x, alpha=0.3),
    lambda t, x: t.nn.functional.threshold(x, 0.3, 0.0),
    x=(3, 4),
)
case(
    "swiglu",
    lambda b, gate, linear: b.swiglu(gate, linear),
    lambda t, gate, linear: t.nn.functional.silu(gate) * linear,
    gate=(2, 3, 4),
    linear=(2, 3, 4),
)

# ---- two operands and more -------------------------------------------------------------------------------------------

BROADCAST = [((3, 4), (3, 4)), ((3, 4), (4,)), ((1, 4), (3, 1)), ((), (2, 3)), ((2, 1, 4), (3, 1)), ((2, 3), (1, 1, 1))]
BINARY: dict[str, Any] = {
    "add": lambda t, x, y: x + y,
    "sub": lambda t, x, y: x - y,
    "mul": lambda t, x, y: x * y,
    "div": lambda t, x, y: x / y,
    "pow": lambda t, x, y: x**y,
    "max": lambda t, x, y: t.maximum(x, y),
    "min": lambda t, x, y: t.minimum(x, y),
    "sum": lambda t, x, y: x + y,
    "mean": lambda t, x, y: (x + y) / 2,
}
for name, function in BINARY.items():
    for shapes in BROADCAST:
        case(
            f"{name} {shapes}",
            lambda b, x, y, name=name: b.create(name, x, y),
            function,
            x=Draw(shapes[0], low=0.3, high=1.5),
            y=Draw(shapes[1], low=0.3, high=1.5),
        )
case(
    "mod", lambda b, x, y: b.mod(x, y, fmod=1), lambda t, x, y: t.fmod(x, y), x=Draw((3, 4), 5.0), y=Draw((4,), low=0.5)
)
case("three sums", lambda b, x, y, z: b.sum(x, y, z, x), lambda t, x, y, z: x + y + z + x, x=(2, 3), y=(3,), z=(2, 1))
case(
    "one operand twice",
    lambda b, x: b.mul(x, b.add(x, b.exp(x))),
    lambda t, x: x * (x + t.exp(x)),
    x=(3, 4),
)
for shapes in [((2, 3, 4), (3, 1)), ((2, 3, 4), (1,)), ((3, 4), (3, 4))]:
    case(
        f"prelu {shapes}",
        lambda b, x, slope: b.prelu(x, slope),
        lambda t, x, slope: t.where(x > 0, x, slope * x),
        x=shapes[0],
        slope=shapes[1],
    )
for shapes in [((3, 4), (3, 4)), ((4,), (3, 1)), ((), (2, 4))]:
    mask = np.array([True, False, True, False])
    case(
        f"where {shapes}",
        lambda b, x, y, mask=mask: b.where(mask, x, y),
        lambda t, x, y, mask=mask: t.where(t.from_numpy(mask), x, y),
        x=shapes[0],
        y=shapes[1],
    )


def _guarded(t: Any, x: Any) -> Any:
    """log(x) above 0.5, sqrt(relu(x)) below: PyTorch itself needs harmless operands where it does not look."""
    large, small = x > 0.5, (x > 0) & (x <= 0.5)
    one = t.ones(())
    return t.where(large, t.log(t.where(large, x, one)), small * t.sqrt(t.where(small, x, one)))


case(
    "where the other side is infinite",
    lambda b, x: b.where(b.greater(x, 0.5), b.log(x), b.sqrt(b.relu(x))),
    _guarded,
    x=np.array([-1.0, 0.2, 0.7, 2.0, -0.1]),
)

# ---- exactly at a border ---------------------------------------------------------------------------------------------

EDGES = np.array([[-2.0, 0.0, 1.0, -1.0], [3.0, -0.0, 0.5, -0.5]])
case("abs at 0", lambda b, x: b.abs(x), lambda t, x: x.abs(), x=EDGES)
case("relu at 0", lambda b, x: b.relu(x), lambda t, x: x.relu(), x=EDGES)
case("clip at its bounds", lambda b, x: b.clip(x, np.float32(-1), np.float32(1)), lambda t, x: x.clamp(-1, 1), x=EDGES)
case("clip below", lambda b, x: b.clip(x, np.float32(-1)), lambda t, x: x.clamp(min=-1), x=EDGES)
case("clip above", lambda b, x: b.clip(x, None, np.float32(0.5)), lambda t, x: x.clamp(max=0.5), x=EDGES)
case(
    "clip with bounds that are trained",
    lambda b, x, low, high: b.clip(x, low, high),
    lambda t, x, low, high: x.clamp(low, high),
    x=Draw((4, 5), 2.0),
    low=np.array(-0.7),
    high=np.array(0.8),
)
case("max of equals", lambda b, x, y: b.max(x, y), lambda t, x, y: t.maximum(x, y), x=EDGES, y=np.abs(EDGES))
case("min of equals", lambda b, x, y: b.min(x, y), lambda t, x, y: t.minimum(x, y), x=EDGES, y=np.abs(EDGES))
for exponent in (0.0, 1.0, 2.0, 3.0, 0.5, -1.5):
    case(
        f"pow {exponent}",
        lambda b, x, e=exponent: b.pow(x, np.float32(e)),
        lambda t, x, e=exponent: x**e,
        x=np.abs(EDGES) + 0.5 if exponent in (0.5, -1.5) else EDGES,
    )
case(
    "pow of 0 to a power that is trained",
    lambda b, x, y: b.pow(x, y),
    lambda t, x, y: x**y,
    x=np.array([0.0, 0.0, 2.0, 1.0]),
    y=np.array([1.0, 2.0, 0.0, -1.0]),
)
for name in ("floor", "ceil", "round", "sign"):
    case(
        f"{name} beside what goes on",
        lambda b, x, name=name: b.mul(x, b.create(name, b.mul(x, np.float32(2.0)))),
        lambda t, x, name=name: x * getattr(t, name)(2 * x),
        x=(3, 4),
    )
case("identity", lambda b, x: b.mul(b.identity(x), x), lambda t, x: x * x, x=(3,))
case(
    "casts",
    lambda b, x: b.cast_like(b.mul(b.cast(x, to=_f64()), b.cast(x, to=_f64())), x),
    lambda t, x: (x.double() * x.double()).float(),
    x=(3, 4),
)


def _f64() -> Any:
    from tilewright import f64

    return f64
