"""Ways to run a module."""
