"""Sample data and sample lakes: the flights, a shop with a database, and the sample lake."""
