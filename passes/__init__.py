"""Rewrites of a module, and the manager that runs, checks and times them."""
