"""Measurements with their peers: `python -m benchmarks NAME [--json]`. The method is in benchmarks/README.md."""
