"""What a table's files are like, what that costs, and how to make them better."""
