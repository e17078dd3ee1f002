"""The documentation's site: built from `docs/`, the notebooks' committed outputs, and the code."""
