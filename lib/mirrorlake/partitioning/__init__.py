"""The partitioning policy: files that hold one hash bucket and one range of time each.

A policy names at most two keys. A background process rewrites mixed files into homogeneous ones;
what it has done is in the files' tags, and files that it has not rewritten yet are unpartitioned,
read like any other. Nothing here changes a row.
"""
