"""The one room that reads and makes Delta logs. Source: the Delta transaction log protocol."""
