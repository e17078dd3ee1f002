"""Analyse a table's files, compare them with guardrails, and improve them."""
