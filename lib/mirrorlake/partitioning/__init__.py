"""Partition tables by a policy: each file holds one hash bucket and one range of time.

A policy has one or two keys. A background process rewrites mixed files into homogeneous ones and
records this in the files' tags. Files that are not rewritten yet are unpartitioned and are read
like any other. No row changes.
"""
