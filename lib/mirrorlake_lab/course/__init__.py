"""The course: lessons, tasks and their checks, copies to work on, and the picture of the system."""
