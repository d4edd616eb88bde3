"""The order of a graph's nodes: ONNX wants definitions before uses, and not every file keeps to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from onnx import AttributeProto, GraphProto, NodeProto


class CyclicGraph(Exception):
    """The nodes at positions `cycle` need each other's results."""

    def __init__(self, cycle: list[int]) -> None:
        super().__init__(cycle)
        self.cycle = cycle


def sorted_order(nodes: Iterable[NodeProto], is_defined: Callable[[str], bool]) -> list[int] | None:
    """Positions of `nodes` such that every definition comes before its uses; None if they are in order already.

    `is_defined` tells whether a name has a meaning before the first node. The order is stable: a node moves only
    behind what it needs. Names that nobody defines are not looked at here. Raises CyclicGraph.
    """
    nodes = list(nodes)
    producer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            producer.setdefault(name, index)
    producer.pop("", None)
    needs = [[producer[name] for name in _needed(node) if name in producer and not is_defined(name)] for node in nodes]
    if all(earlier < index for index, found in enumerate(needs) for earlier in found):
        return None
    order: list[int] = []
    state = [0] * len(nodes)  # 0 unseen, 1 being visited, 2 placed
    for root in range(len(nodes)):
        if state[root]:
            continue
        state[root] = 1
        stack = [(root, iter(sorted(needs[root])))]
        while stack:
            current, pending = stack[-1]
            following = next((index for index in pending if state[index] != 2), None)
            if following is None:
                stack.pop()
                state[current] = 2
                order.append(current)
            elif state[following] == 1:
                path = [index for index, _ in stack]
                raise CyclicGraph(path[path.index(following) :])
            else:
                state[following] = 1
                stack.append((following, iter(sorted(needs[following]))))
    return order


def _needed(node: NodeProto) -> Iterator[str]:
    """The names a node uses: its inputs, and what its graphs take from around them."""
    yield from node.input
    for graph in graphs_of(node):
        yield from _captured(graph)


def is_deeper_than(graphs: Iterable[GraphProto], limit: int) -> bool:
    """Whether graphs are nested in `graphs` deeper than `limit`; walks without recursion."""
    stack = [(graph, 0) for graph in graphs]
    while stack:
        graph, depth = stack.pop()
        if depth > limit:
            return True
        stack.extend((inner, depth + 1) for node in graph.node for inner in graphs_of(node))
    return False


def graphs_of(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs in a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH or attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _captured(graph: GraphProto) -> set[str]:
    """Names that `graph` uses and does not define."""
    defined = {value.name for value in graph.input}
    defined.update(tensor.name for tensor in graph.initializer)
    defined.update(tensor.values.name for tensor in graph.sparse_initializer)
    used = {value.name for value in graph.output}
    for node in graph.node:
        used.update(_needed(node))
        defined.update(node.output)
    return used - defined
