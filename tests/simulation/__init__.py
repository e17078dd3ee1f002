"""Deterministic simulation: one seed decides every interleaving, fault and clock of a lake."""
