"""Plans of notebooks, executed by papermill."""
