"""Derivatives of the operators: rules by family, and the reverse sweep that puts them together.

A rule says, for one operation, what the adjoints of its operands are, given those of its results. It is either the
method `gradient` of a definition, or a function in a file here, registered with `gradient_of`. An operator without a
rule is differentiated through its parts: those registered with `parts_of`, else those of `OpDefinition.decompose`.

Loaded when the first derivative is asked for.
"""
