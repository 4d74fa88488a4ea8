"""Attacks by the portable network in an engine's header (classes 26 to 37)."""
