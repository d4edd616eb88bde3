"""The intermediate representation: values, operations, blocks, regions, types, and their text form."""
