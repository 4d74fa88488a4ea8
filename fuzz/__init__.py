"""Fuzzing of every parser: `python -m fuzz --seconds N` (make fuzz)."""
