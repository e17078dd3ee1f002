"""`./mirrorlake lint ROOT` checks a landing zone, or one `--table` of it, before it is mirrored.

It only reads, and needs no Spark. Files that are applied already are not read again. Every problem
of the others is named, not only the first, with file, row and column; of a text file that can't be
read to its end, only the first. Rows are counted from 1; where several rows of a file have the same
problem, the first is named and all are counted. What concerns one file after the other is reported
at the first of them.

An **error** is what the mirror stops at, or rows that it never sees; a **warning** is what works,
but probably not as its author meant it. With an error the exit status is 1. `--json` prints
`{"findings": [{rule, severity, table, file, row, column, message, fix}]}`; what does not apply is
null. Footers, markers and keys are read, not every page of every column.
"""
