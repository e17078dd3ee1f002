"""What people look at: plots and tables."""
