"""The partitioning policy: files that hold one hash bucket and one range of time each.

A policy names at most two keys. A background process rewrites mixed files into homogeneous ones;
what it has done is in the files' tags, and what it has not done yet is the tail, read like any
other file. Nothing here changes a row.
"""
