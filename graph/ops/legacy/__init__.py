"""Old forms of standard operators that no operator of today has alone.

The importer takes nodes of older opsets to today's operators (importers/onnx/versions). Where the old meaning takes
several operators now, or depends on what is not known yet (an attribute that a function's caller gives), the node keeps
its old definition, `add.v6` in IR text. Each definition here says how it decomposes; the pass `expand-legacy` replaces
it, evaluation goes the same way.
"""

from . import broadcasting, control_flow, ml, moved, movement, normalization, pooling

__all__ = ["broadcasting", "control_flow", "ml", "moved", "movement", "normalization", "pooling"]
