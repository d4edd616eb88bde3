"""Checks that a module obeys the rules of the IR; run after import, at the borders of passes, and in tests.

Every rule has a code (`verify/<code>`), all findings are reported at once, each with the operations around it:

    parent, links, uses          the data structure agrees with itself
    use-before-definition, cycle, scope, foreign-value, detached-value      every operand is defined where it is used
    terminator, outputs          a block ends with `return`, whose operands parallel the block's declared outputs
    level, unknown-operator      only operators of the module's level; one of ONNX's own domain must exist
    operand-count, result-count, attribute-..., region-..., type-constraint, type-variable      see `signature`
    default, attribute-reference, function-key      what a function declares fits what it uses
    inference                    (only with `types=True`) types do not contradict what inference derives
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence

from .core import AttributeReference, Block, Operation, Region, Use, Value
from .diagnostics import Diagnostic, TypeInferenceError, VerifyError
from .infer import InferenceContext, infer_types, refine
from .module import Function, FunctionKey, Module
from .names import value_names
from .opdef import OpaqueDefinition, OpDefinition
from .printer import excerpt
from .signature import check_signature

# Which operators a level allows, by its name; a level is added by the file that defines its operators.
LEVELS: dict[str, Callable[[OpDefinition], bool]] = {}

# The domains of the lower levels' operators, which must not appear at the level "onnx".
LOWER_DOMAINS = frozenset({"kernel", "element", "loop", "scalar"})
LEVELS["onnx"] = lambda definition: definition.domain not in LOWER_DOMAINS
# Beside kernels, shape arithmetic and what has no kernel stay as they are.
LEVELS["kernel"] = lambda definition: definition.domain not in ("loop", "scalar")
LEVELS["loop"] = lambda definition: definition.domain in ("loop", "scalar") or definition.is_terminator

# Context is made for so many findings; a broken module can have thousands.
MAX_EXCERPTS = 20


def verify(module: Module, *, types: bool = False) -> None:
    """Raise VerifyError with every broken rule of the IR in `module`.

    `types=True` also infers all types again, which takes about as long as the pass `infer-shapes`.
    """
    found = findings(module, types=types)
    if found:
        raise VerifyError.collect(found)


def findings(module: Module, *, types: bool = False) -> list[Diagnostic]:
    """What `verify` would raise, as a list; empty for a sound module."""
    verifier = _Verifier(module)
    for key, function in module.functions.items():
        if key != function.key:
            verifier.report("function-key", f"the function @{function.key} is filed under @{key}")
    for function in module.all_functions():
        verifier.function(function)
    if types and not verifier.found:
        verifier.check_inference()
    return verifier.found


class _Verifier:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.found: list[Diagnostic] = []
        self.legal = LEVELS.get(module.level)
        if self.legal is None:
            self.report("level", f"there is no level {module.level!r}; levels are {', '.join(LEVELS)}")
        self.current = module.main
        self.seen: set[Operation] = set()
        self.visible: set[Value] = set()
        self.names: dict[Function, dict[Value, str]] = {}

    def report(self, code: str, message: str, op: Operation | None = None, *notes: str) -> None:
        context = ""
        if op is not None and len(self.found) < MAX_EXCERPTS and op.parent is not None:
            if self.current not in self.names:
                self.names[self.current] = value_names(self.current.block)
            context = excerpt(op, names=self.names[self.current])
        location = op.location if op is not None else None
        self.found.append(Diagnostic(f"verify/{code}", message, location, notes, excerpt=context))

    # ---- structure -----------------------------------------------------------------------------------------------

    def function(self, function: Function) -> None:
        self.current = function
        if function.region.parent is not function:
            self.report("parent", f"the body of @{function.key} does not know its function")
        arguments = function.block.arguments
        for argument, data in function.defaults.items():
            if argument not in arguments:
                self.report(
                    "default", f"@{function.key} has a default for %{argument.name}, which is no argument of it"
                )
            elif getattr(argument.type, "dtype", data.dtype) is not data.dtype:
                self.report("default", f"the default of %{argument.name}: {argument.type} is {data.type}")
        self.block(function.region, None)

    def block(self, region: Region, owner: Operation | None) -> None:
        """Check a block and everything below. Its values are visible to it and its regions only."""
        block = region.block
        if block.parent is not region:
            self.report("parent", f"the block of region {region.name!r} does not know its region", owner)
        defined: list[Value] = []
        self.define(block.arguments, block, defined, owner)
        previous: Operation | None = None
        for op in block:
            if op in self.seen:
                self.report("links", f"{op.name} is in the module twice", op)
                break
            self.seen.add(op)
            if op.parent is not block or op.previous is not previous:
                self.report("links", f"{op.name} is not linked to its block or neighbours", op)
            previous = op
            self.operation(op)
            self.define(op.results, op, defined, op)
        self.ending(block, previous, owner)
        self.check_users(defined)
        self.visible.difference_update(defined)

    def define(
        self,
        values: Sequence[Value],
        owner: Operation | Block,
        defined: list[Value],
        op: Operation | None,
    ) -> None:
        for index, value in enumerate(values):
            if value.owner is not owner or value.index != index:
                self.report("links", f"%{value.name} does not know the place where it is defined", op)
            if value in self.visible:
                self.report("links", f"%{value.name} is defined twice", op)
        defined.extend(values)
        self.visible.update(values)

    def ending(self, block: Block, last: Operation | None, owner: Operation | None) -> None:
        if last is None or not last.is_terminator:
            self.report("terminator", "a block does not end with a terminator such as `return`", last or owner)
            return
        if len(last.operands) != len(block.outputs):
            message = f"the block declares {len(block.outputs)} outputs, its terminator returns {len(last.operands)}"
            self.report("outputs", message, last)
        if None in last.operands:
            self.report("outputs", "a terminator cannot leave out an operand", last)

    def operation(self, op: Operation) -> None:
        for index, operand in enumerate(op.operands):
            if operand is None:
                continue
            if Use(op, index) not in operand._uses:
                self.report("uses", f"%{operand.name} does not know that operand {index} of {op.name} uses it", op)
            if operand not in self.visible:
                self.undefined(op, operand)
        if op.is_terminator and op.next is not None:
            self.report("terminator", f"{op.name} ends the block, but {op.next.name} follows", op)
        self.legality(op)
        for code, message in check_signature(op):
            self.report(code, message, op)
        self.references(op)
        for name, region in op.regions.items():
            if region.parent is not op or region.name != name:
                self.report("parent", f"the region {name!r} does not know its {op.name}", op)
            self.block(region, op)

    def check_users(self, values: list[Value]) -> None:
        """Every recorded use is real: an operation of this function that has the value there."""
        for value in values:
            for user, index in value._uses:
                if user.input(index) is not value:
                    self.report("uses", f"%{value.name} believes to be operand {index} of {user.name}", value.producer)
                elif user not in self.seen:
                    self.report("uses", f"%{value.name} is used by a {user.name} outside of its scope", value.producer)

    # ---- definitions before uses ---------------------------------------------------------------------------------

    def undefined(self, op: Operation, operand: Value) -> None:
        name = f"%{operand.name or '?'}"
        home = operand.block
        if home is None:
            self.report("detached-value", f"{name} is the result of an operation that is in no block", op)
        elif home in _enclosing_blocks(op):
            producer = operand.producer
            if producer is not None and len(self.found) < MAX_EXCERPTS and _depends_on(producer, op):
                self.report("cycle", f"{name} depends on this {op.name}, which uses it", op)
            else:
                self.report("use-before-definition", f"{name} is used before it is defined", op)
        elif _function_of(home) is self.current:
            self.report("scope", f"{name} is defined in a region that does not enclose this use", op)
        else:
            self.report("foreign-value", f"{name} belongs to another function or module", op)

    # ---- operators, functions, types -----------------------------------------------------------------------------

    def legality(self, op: Operation) -> None:
        definition = op.definition
        if self.legal is not None and not self.legal(definition):
            self.report("level", f"{op.name} is not an operator of the level {self.module.level!r}", op)
        if not isinstance(definition, OpaqueDefinition) or definition.domain:
            return
        key = FunctionKey("", definition.op_type, op.metadata.get("overload", ""))
        if key not in self.module.functions:
            self.report("unknown-operator", f"ONNX has no operator {definition.op_type}, nor is it a function here", op)

    def references(self, op: Operation) -> None:
        for name, value in op.attributes.items():
            if isinstance(value, AttributeReference) and value.name not in self.current.attributes:
                message = f"the attribute {name!r} refers to ${value.name}, which @{self.current.key} does not have"
                self.report("attribute-reference", message, op)

    def check_inference(self) -> None:
        """Bodies of model-local functions are untyped, so only `main` is looked at."""
        self.current = self.module.main
        context = InferenceContext(copy.deepcopy(self.module.symbols))
        for op in self.module.main.walk():
            try:
                inferred = infer_types(op, context)
            except TypeInferenceError as error:
                self.report("inference", error.diagnostics[0].message, op, *error.diagnostics[0].notes)
                continue
            for result, type in zip(op.results, inferred, strict=True):
                if refine(result.type, type) is None:
                    self.report("inference", f"%{result.name or '?'} is {result.type}, inference says {type}", op)


def _enclosing_blocks(op: Operation) -> Iterator[Block]:
    current: Operation | None = op
    while current is not None and current.parent is not None:
        yield current.parent
        current = current.parent_op


def _function_of(block: Block) -> Function | None:
    """The function that holds `block`; None if it is detached."""
    owner = block.parent.parent if block.parent is not None else None
    while isinstance(owner, Operation):
        region = owner.parent.parent if owner.parent is not None else None
        owner = region.parent if region is not None else None
    return owner


def _depends_on(op: Operation, other: Operation) -> bool:
    """Whether `op` needs a result of `other`, or holds it in a region and so needs it too."""
    if op.is_ancestor_of(other):
        return True
    seen, pending = {op}, [op]
    while pending:
        for operand in pending.pop().operand_values:
            producer = operand.producer
            if producer is other:
                return True
            if producer is not None and producer not in seen:
                seen.add(producer)
                pending.append(producer)
    return False
