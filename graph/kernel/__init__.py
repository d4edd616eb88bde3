"""The level "loop": operators of the domains `loop` (structure, memory, lanes) and `scalar` (arithmetic).

Values are scalars, vectors and flat buffers; index arithmetic is explicit, in elements of type i64. Importing this
package registers the operators and nothing else.
"""

from . import loop_ops, scalar_ops

__all__ = ["loop_ops", "scalar_ops"]
