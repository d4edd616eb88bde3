"""Nodes are counted in graphs within graphs and in function bodies; constants are not."""

from __future__ import annotations

import onnx
from onnx import parser

from tilewright.importers.onnx.node_counts import count_operators

MODEL = """
<ir_version: 10, opset_import: ["" : 21, "local" : 1, "com.microsoft" : 1]>
main (float[4] x, bool c) => (float[4] y) {
    two = Constant <value = float {2.0}> ()
    g = com.microsoft.Gelu (x)
    y = If (c) <
        then_branch = then () => (float[4] t) { t = local.twice (g) },
        else_branch = otherwise () => (float[4] e) {
            d = Constant <value = float {3.0}> ()
            n = Not (c)
            e = If (n) <
                then_branch = inner () => (float[4] i) { i = Mul (g, d) },
                else_branch = last () => (float[4] l) { l = Identity (g) }
            >
        }
    >
}
<domain: "local", opset_import: ["" : 21]>
twice (a) => (b) { b = Add (a, a) }
"""


def test_nodes_by_operator() -> None:
    model = parser.parse_model(MODEL)
    assert count_operators(model) == {
        "com.microsoft::Gelu": 1, "If": 2, "local::twice": 1, "Not": 1, "Mul": 1, "Identity": 1, "Add": 1,
    }  # fmt: skip
    assert count_operators(onnx.ModelProto()).total() == 0
