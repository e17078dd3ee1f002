"""Shared helpers of tests: reference models, writers of files and lakes, and readers of files."""
