"""Read and write Delta transaction logs.

Only this package and `spark` parse or write a log. Source: the Delta transaction log protocol.
"""
