"""Speed beside other frameworks: `make bench-peers`; README.md says how."""
