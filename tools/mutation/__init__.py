"""Mutation testing: small faults put into modules, one at a time, and whether a test notices each."""
