"""The long suites in parts that each write a section of docs/conformance.md: `make conformance PART=NAME`."""
