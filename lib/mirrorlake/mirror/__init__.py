"""Mirror the landing zone into Delta tables: decide, apply, keep state, report and repair."""
