"""Readers and writers of other people's model formats."""
