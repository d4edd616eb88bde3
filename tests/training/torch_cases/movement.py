"""What moves, picks, repeats and places elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import case

SHAPE = (2, 3, 4)


def places(*items: Any) -> np.ndarray:
    return np.array(items, np.int64)


case("reshape", lambda b, x: b.reshape(x, places(0, -1)), lambda t, x: x.reshape(2, -1), x=SHAPE)
case("flatten", lambda b, x: b.flatten(x, axis=2), lambda t, x: x.reshape(6, 4), x=SHAPE)
case("squeeze", lambda b, x: b.squeeze(x, places(1)), lambda t, x: x.squeeze(1), x=(2, 1, 4))
case("unsqueeze", lambda b, x: b.unsqueeze(x, places(0, -1)), lambda t, x: x[None, ..., None], x=SHAPE)
case("transpose", lambda b, x: b.transpose(x, perm=[2, 0, 1]), lambda t, x: x.permute(2, 0, 1), x=SHAPE)
case("expand", lambda b, x: b.expand(x, places(2, 3, 4)), lambda t, x: x.expand(2, 3, 4), x=(3, 1))
case("expand less", lambda b, x: b.expand(x, places(1, 4)), lambda t, x: x.expand(2, 3, 4), x=(2, 3, 1))
case("tile", lambda b, x: b.tile(x, places(2, 1, 3)), lambda t, x: x.repeat(2, 1, 3), x=SHAPE)
case("concat", lambda b, x, y: b.concat(x, y, x, axis=1), lambda t, x, y: t.cat([x, y, x], 1), x=SHAPE, y=(2, 1, 4))
case(
    "split", lambda b, x: list(b.split(x, places(1, 3), axis=-1, outputs=2)), lambda t, x: x.split([1, 3], -1), x=SHAPE
)
case("split, one part", lambda b, x: b.split(x, places(1, 3), axis=-1, outputs=2)[1], lambda t, x: x[..., 1:], x=SHAPE)
case(
    "split in equal parts",
    lambda b, x: list(b.split(x, num_outputs=3, axis=2, outputs=3)),
    lambda t, x: x.split([2, 2, 1], 2),
    x=(2, 3, 5),
)
for k, upper in [(-1, 0), (0, 0), (2, 0), (-1, 1), (0, 1), (2, 1)]:
    case(
        f"trilu {k} {upper}",
        lambda b, x, k=k, u=upper: b.trilu(x, np.array(k), upper=u),
        lambda t, x, k=k, u=upper: (t.triu if u else t.tril)(x, k),
        x=SHAPE,
    )
case(
    "depth_to_space CRD",
    lambda b, x: b.depth_to_space(x, blocksize=2, mode="CRD"),
    lambda t, x: t.nn.functional.pixel_shuffle(x, 2),
    x=(1, 8, 2, 3),
)
case(
    "depth_to_space DCR",
    lambda b, x: b.depth_to_space(x, blocksize=2),
    lambda t, x: x.reshape(1, 2, 2, 2, 2, 3).permute(0, 3, 4, 1, 5, 2).reshape(1, 2, 4, 6),
    x=(1, 8, 2, 3),
)
case(
    "space_to_depth",
    lambda b, x: b.space_to_depth(x, blocksize=2),
    lambda t, x: x.reshape(1, 2, 2, 2, 3, 2).permute(0, 3, 5, 1, 2, 4).reshape(1, 8, 2, 3),
    x=(1, 2, 4, 6),
)
case(
    "reverse_sequence",
    lambda b, x: b.reverse_sequence(x, places(2, 1, 2), batch_axis=1, time_axis=0),
    lambda t, x: t.stack([x[:, 0].flip(0), x[:, 1], x[:, 2].flip(0)], 1),
    x=SHAPE,
)
case(
    "center_crop_pad",
    lambda b, x: b.center_crop_pad(x, places(3, 6), axes=[1, 2]),
    lambda t, x: t.nn.functional.pad(x[:, 1:4], (1, 1)),
    x=(2, 5, 4),
)

# ---- slices and pads -------------------------------------------------------------------------------------------------

SLICES: dict[str, tuple[tuple[list[int], ...], Any]] = {
    "one part": (([1], [3], [2], [1]), lambda t, x: x[..., 1:3]),
    "every other": (([0], [100], [2], [2]), lambda t, x: x[..., ::2]),
    "backwards": (([3], [-100], [2], [-1]), lambda t, x: x.flip(2)),
    "backwards, every other": (([-1], [-(2**40)], [2], [-2]), lambda t, x: x.flip(2)[..., ::2]),
    "two axes": (([1, 0], [3, 1], [-1, 0], [1, 1]), lambda t, x: x[:1, :, 1:3]),
}
for name, (columns, function) in SLICES.items():
    case(f"slice {name}", lambda b, x, c=columns: b.slice(x, *(places(*column) for column in c)), function, x=SHAPE)
PADS: dict[str, str] = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
for mode, theirs in PADS.items():
    case(
        f"pad {mode}",
        lambda b, x, mode=mode: b.pad(x, places(0, 0, 1, 2, 0, 0, 2, 1), mode=mode),
        lambda t, x, theirs=theirs: t.nn.functional.pad(x, (2, 1, 1, 2), mode=theirs),
        x=(2, 2, 4, 5),
    )
case(
    "pad less than nothing",
    lambda b, x: b.pad(x, places(0, -1, 2, 1, 0, -1)),
    lambda t, x: t.nn.functional.pad(x, (2, -1, -1, 0, 0, 1)),
    x=SHAPE,
)
case(
    "pad with a fill that is trained",
    lambda b, x, fill: b.pad(x, places(1, 2), fill, places(1)),
    lambda t, x, fill: t.cat([fill.expand(2, 1), x, fill.expand(2, 2)], 1),
    x=(2, 3),
    fill=(),
)

# ---- picking ---------------------------------------------------------------------------------------------------------

for axis in (0, 1, -1):
    for indices in (places(0, -1, 0), np.array([[1, 0], [0, -2]]), np.array(1)):
        case(
            f"gather {axis} {indices.tolist()}",
            lambda b, x, i=indices, a=axis: b.gather(x, i, axis=a),
            lambda t, x, i=indices, a=axis: x[(slice(None),) * (a % 3) + (t.from_numpy(i),)],
            x=SHAPE,
        )
ELEMENTS = np.array([[[0, 3, 1], [2, 2, 0]]])
case(
    "gather_elements",
    lambda b, x: b.gather_elements(x, ELEMENTS, axis=2),
    lambda t, x: x.gather(2, t.from_numpy(ELEMENTS)),
    x=SHAPE,
)
case(
    "gather_elements from the end",
    lambda b, x: b.gather_elements(x, ELEMENTS - 4, axis=-1),
    lambda t, x: x.gather(2, t.from_numpy(ELEMENTS)),
    x=SHAPE,
)
case(
    "gather_nd",
    lambda b, x: b.gather_nd(x, np.array([[0, 1], [1, -1], [0, 1]])),
    lambda t, x: x[[0, 1, 0], [1, -1, 1]],
    x=SHAPE,
)
case(
    "gather_nd in batches",
    lambda b, x: b.gather_nd(x, np.array([[[1], [0]], [[2], [2]]]), batch_dims=1),
    lambda t, x: t.stack([x[0][[1, 0]], x[1][[2, 2]]]),
    x=SHAPE,
)
case("compress", lambda b, x: b.compress(x, np.array([True, False, True]), axis=1), lambda t, x: x[:, [0, 2]], x=SHAPE)
case(
    "compress all",
    lambda b, x: b.compress(x, np.array([True, False, True, True])),
    lambda t, x: x.reshape(-1)[[0, 2, 3]],
    x=SHAPE,
)
for largest in (0, 1):
    case(
        f"topk {largest}",
        lambda b, x, g=largest: b.topk(x, places(2), axis=1, largest=g)[0],
        lambda t, x, g=largest: x.topk(2, 1, largest=bool(g))[0],
        x=SHAPE,
    )
case(
    "one_hot",
    lambda b, x: b.one_hot(places(1, 0, 2), np.array(3), x),
    lambda t, x: t.where(t.eye(3, dtype=t.bool)[[1, 0, 2]], x[1], x[0]),
    x=(2,),
)

# ---- placing ---------------------------------------------------------------------------------------------------------

TWICE, ONCE = np.array([[0, 2], [0, 2], [1, 2]]), np.array([[0, 2], [1, 0]])
REDUCED = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
for reduction, theirs in REDUCED.items():
    case(
        f"scatter_elements {reduction}",
        lambda b, x, u, r=reduction: b.scatter_elements(x, TWICE, u, axis=0, reduction=r),
        lambda t, x, u, r=theirs: x.scatter_reduce(0, t.from_numpy(TWICE), u, r, include_self=True),
        x=(3, 2),
        u=(3, 2),
    )
case(
    "scatter_elements",
    lambda b, x, u: b.scatter_elements(x, ONCE, u, axis=0),
    lambda t, x, u: x.scatter(0, t.from_numpy(ONCE), u),
    x=(3, 2),
    u=(2, 2),
)
case(
    "scatter_elements along the last axis",
    lambda b, x, u: b.scatter_elements(x, ONCE - 3, u, axis=-1),
    lambda t, x, u: x.scatter(1, t.from_numpy(ONCE), u),
    x=(2, 3),
    u=(2, 2),
)
case(
    "scatter_nd",
    lambda b, x, u: b.scatter_nd(x, np.array([[2], [0]]), u),
    lambda t, x, u: x.index_put((t.tensor([2, 0]),), u),
    x=(3, 2),
    u=(2, 2),
)
case(
    "scatter_nd add",
    lambda b, x, u: b.scatter_nd(x, np.array([[1, 1], [1, 1], [0, 0]]), u, reduction="add"),
    lambda t, x, u: x.index_put((t.tensor([1, 1, 0]), t.tensor([1, 1, 0])), u, accumulate=True),
    x=(3, 2),
    u=(3,),
)
case(
    "scatter_nd mul",
    lambda b, x, u: b.scatter_nd(x, np.array([[0], [0], [2]]), u, reduction="mul"),
    lambda t, x, u: x.scatter_reduce(0, t.tensor([0, 0, 2]), u, "prod"),
    x=(3,),
    u=(3,),
)
case(
    "scatter_nd mul of zeros",
    lambda b, x, u: b.scatter_nd(x, np.array([[0], [0], [2]]), u, reduction="mul"),
    lambda t, x, u: t.stack([x[0] * u[0] * u[1], x[1], x[2] * u[2]]),
    x=np.array([1.5, 2.0, 0.0]),
    u=np.array([2.0, 0.0, 3.0]),
)
for reduction, theirs in (("max", "amax"), ("min", "amin")):
    case(
        f"scatter_nd {reduction}",
        lambda b, x, u, r=reduction: b.scatter_nd(x, np.array([[0], [0], [2]]), u, reduction=r),
        lambda t, x, u, r=theirs: x.scatter_reduce(0, t.tensor([0, 0, 2]), u, r),
        x=(3,),
        u=(3,),
    )
case(
    "tensor_scatter",
    lambda b, past, new: b.tensor_scatter(past, new, places(1, 3), axis=2),
    lambda t, past, new: t.stack(
        [t.cat([past[0, :, :1], new[0], past[0, :, 3:]], 1), t.cat([past[1, :, :3], new[1]], 1)]
    ),
    past=(2, 1, 5, 2),
    new=(2, 1, 2, 2),
)
