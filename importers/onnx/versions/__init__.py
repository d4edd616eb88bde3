"""Opset history: from the form a node has in a file to the form held in memory, and back.

In memory every operator of the default domain is at `INTERNAL_OPSET`. `upgrade` takes one node of an older file there,
`downgrade` takes it back for writing; one node is always one node. `upgrade` followed by `downgrade` to the same
opset gives the original back, up to attributes that equal their default.

A node whose old meaning no operator of today has alone (Softmax-1 over several axes, Add-6 with `axis`) keeps its old
version: `Node.version` is then set, and graph/ops/legacy says how it decomposes.

Each file here holds the steps of one kind; a step is registered under the operator and the version it leads to.
Widened type constraints need no step: `conformance` checks types, attributes and inputs against the target's schema.

Where the text of the standard changed without a new meaning in practice, there is no step either: ONNX Runtime and
onnx.reference read the old version as they read the new one. These are OneHot-11 (negative indices count from the
end), ConvTranspose-11 (on which side `SAME_UPPER` pads more), AveragePool-22 and MaxPool-22 (windows that start in the
padding), Cast-24 (infinity to float8), BatchNormalization-14 (variance over N, not N-1).
"""

from . import axes, broadcasting, negative_axes, renamed, resize, semantics, values, without_effect
from .engine import downgrade, upgrade
from .node import CannotDowngrade, Facts, Node, node_of

__all__ = [
    "CannotDowngrade", "Facts", "Node", "axes", "broadcasting", "downgrade", "negative_axes", "node_of", "renamed",
    "resize", "semantics", "upgrade", "values", "without_effect",
]  # fmt: skip
