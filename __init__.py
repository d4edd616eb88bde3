"""Tilewright: read a neural network, see it, rewrite it, prove that it still agrees, and compile it."""

from __future__ import annotations

__version__ = "0.1.0.dev0"
