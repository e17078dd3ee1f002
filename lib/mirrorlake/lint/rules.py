"""Every rule of the linter, one row each: what it finds, why that matters, what to do.

`docs/lint.md` shows these rows; a test compares the two. An error is what the mirror stops at, or
rows that it never sees; a warning is what works, but hardly as its author meant it.
"""

from __future__ import annotations

from mirrorlake.lint.rule import Rule, Severity

_ERROR, _WARNING = Severity.ERROR, Severity.WARNING

RULES: tuple[Rule, ...] = (
    # The zone
    Rule(
        "zone-missing",
        _ERROR,
        "There is no landing zone, or nothing in it.",
        "A mistyped root would look like a clean zone.",
        "Pass the folder that has Files/LandingZone in it, or publish a table first.",
    ),
    Rule(
        "partner-missing",
        _WARNING,
        "The zone has no `_partnerEvents.json`.",
        "Nobody can tell from the zone who publishes into it.",
        "Put a _partnerEvents.json with partnerName and sourceInfo at the zone's root.",
    ),
    Rule(
        "partner-invalid",
        _WARNING,
        "`_partnerEvents.json` is not JSON, or a field of it is missing or no text.",
        "The original's monitoring shows who publishes from it.",
        "Write it again with partnerName, and sourceInfo with sourceType in it, as texts.",
    ),
    # Folders
    Rule(
        "folder-name",
        _ERROR,
        "A folder's name can't become a table's.",
        "It could leave its place, hides the table, or no file system takes it everywhere; the "
        "mirror refuses the folder.",
        "Rename the folder.",
    ),
    Rule(
        "folder-hidden",
        _WARNING,
        "A folder whose name starts with `_` holds a table's files.",
        "Such folders are ignored: nothing of it is mirrored.",
        "Rename the folder without the underscore, or move its files away.",
    ),
    Rule(
        "folder-clash",
        _ERROR,
        "A table is named like a schema.",
        "The one's Delta table would lie in the other's folder, and VACUUM would delete its files; "
        "the mirror refuses the table.",
        "Rename one of the two folders.",
    ),
    Rule(
        "folder-case",
        _ERROR,
        "Two folders' names differ at most by case.",
        "SQL finds tables without regard to case, and many file systems take the two for one.",
        "Rename one of the two folders.",
    ),
    Rule(
        "folder-empty",
        _WARNING,
        "A table's folder has no data file, and no columns are declared for it.",
        "No table can be made of it.",
        "Publish the table's first file, declare its columns, or delete the folder.",
    ),
    Rule(
        "folder-nested",
        _WARNING,
        "A folder lies in a table's folder.",
        "Only the files directly in a table's folder are mirrored. Spark writes such folders when "
        "it is asked for a file.",
        "Move its files up under the next free numbers, or rename it with a leading underscore.",
    ),
    Rule(
        "folder-identity",
        _ERROR,
        "`_mirrorlake.json`, by which the mirror knows the folder again, is broken.",
        "The mirror can't tell which of the files it has applied, and stops.",
        "Delete it together with the folder's files, and publish the table anew.",
    ),
    Rule(
        "folder-taken",
        _ERROR,
        "There is a Delta table of the folder's name that no mirror made.",
        "The mirror never overwrites somebody else's table.",
        "Rename the folder, or move that table away.",
    ),
    Rule(
        "folder-unreadable",
        _ERROR,
        "A folder, or the log of its Delta table, can't be read.",
        "Nothing more can be said of the table, and no mirror gets further.",
        "Look at what the message names, and lint again.",
    ),
    # _metadata.json
    Rule(
        "metadata-unreadable",
        _ERROR,
        "`_metadata.json` is not a JSON object.",
        "The table stops; its files can't be checked, either.",
        'Write it again, as {"keyColumns": ["id"]}.',
    ),
    Rule(
        "metadata-invalid",
        _ERROR,
        "A field of `_metadata.json` makes no sense, or occurs twice.",
        "The table stops until it is corrected.",
        "Correct the field.",
    ),
    Rule(
        "metadata-unknown",
        _WARNING,
        "A field of `_metadata.json` is none of the format's.",
        "It is ignored; a mistyped keyColumns means a table without keys.",
        "Correct the field's name, or remove the field.",
    ),
    Rule(
        "metadata-name",
        _ERROR,
        "A file is named nearly, but not quite, `_metadata.json`.",
        "It is ignored: the table has no keys, and the files are read by defaults.",
        "Rename it to _metadata.json.",
    ),
    Rule(
        "metadata-missing",
        _ERROR,
        "Rows ask for updates, deletes or upserts, and there is no `_metadata.json`.",
        "Without keys no row is found again; the table stops.",
        'Put a _metadata.json into the table\'s folder, as {"keyColumns": ["id"]}.',
    ),
    # Keys
    Rule(
        "key-undeclared",
        _ERROR,
        "Rows ask for updates, deletes or upserts, and `_metadata.json` declares no keys.",
        "Without keys no row is found again; the table stops.",
        "Declare keyColumns in _metadata.json.",
    ),
    Rule(
        "key-changed",
        _ERROR,
        "The declared keys are not those of the mirrored table.",
        "Keys may be added to a table without any, never changed; the table stops.",
        "Restore keyColumns, or delete the table's folder and publish the table anew.",
    ),
    Rule(
        "key-unknown",
        _ERROR,
        "No file has a column that is declared as a key.",
        "The table stops at its first file.",
        "Correct the name in keyColumns, or publish the column.",
    ),
    Rule(
        "key-missing",
        _ERROR,
        "A file lacks a key column that other files have.",
        "Its rows can't be found in the table; the table stops at it.",
        "Upload the file again under the same name, with the column.",
    ),
    Rule(
        "key-null",
        _ERROR,
        "A key is NULL.",
        "A row without its key can't be found again; the table stops at the file.",
        "Fill the key in, and upload the file again under the same name.",
    ),
    # Names and numbers of files
    Rule(
        "file-name",
        _ERROR,
        "A data file's name is not 20 digits and an ending.",
        "The mirror does not see it: its rows are never applied.",
        "Rename the file to the next free number, written with 20 digits.",
    ),
    Rule(
        "file-temporary",
        _WARNING,
        "A file is named as if somebody were still writing it.",
        "It is not applied until it has its final name, and other readers of the zone may take it.",
        "Finish it, then rename it to its number; start the names of unfinished files with _.",
    ),
    Rule(
        "file-ending",
        _ERROR,
        "Nothing says how to read files of this ending.",
        "The table stops at the file.",
        "Publish .parquet or .csv, or name the ending as fileExtension in _metadata.json.",
    ),
    Rule(
        "file-misplaced",
        _ERROR,
        "A data file, or a `_metadata.json`, lies outside any table's folder.",
        "Nothing reads it there.",
        "Move the file into its table's folder.",
    ),
    Rule(
        "file-unexpected",
        _WARNING,
        "A file is none that the format knows.",
        "It is ignored.",
        "Remove the file, or start its name with an underscore.",
    ),
    Rule(
        "file-abandoned",
        _WARNING,
        "A file that was being staged has not changed for a day.",
        "Its writer has died, most likely, and its rows are not in the zone.",
        "Publish its rows again if they are missing, then delete the file.",
    ),
    Rule(
        "file-late",
        _WARNING,
        "A new file of a folder that is ordered by time is older than the last applied one.",
        "It is applied after files that were made later, so older values may replace newer ones.",
        "Check the rows it has in common with later files, and publish those again.",
    ),
    Rule(
        "number-range",
        _ERROR,
        "A file's number is 0, or too large for the table's log.",
        "The table stops.",
        "Rename the file to the next free number; the first is 00000000000000000001.",
    ),
    Rule(
        "number-twice",
        _ERROR,
        "Two files have one number.",
        "Nothing says which comes first; the table stops.",
        "Remove one of the two, or give it the next free number.",
    ),
    Rule(
        "number-gap",
        _ERROR,
        "A number is missing.",
        "The files behind it wait until it is there.",
        "Publish the missing file, even one without rows.",
    ),
    Rule(
        "number-reused",
        _ERROR,
        "A file has a number that was applied before, with another content.",
        "It is never applied.",
        "Publish its rows under the next free number, then delete the file.",
    ),
    Rule(
        "number-lost",
        _WARNING,
        "The last applied file is gone from the table's folder.",
        "Publishers that count by what lies there begin again at 1, and nothing of it is applied.",
        "Move the file back from _ProcessedFiles, or go on with the number after it.",
    ),
    # Contents of files
    Rule(
        "file-zero-bytes",
        _ERROR,
        "A file has zero bytes.",
        "Its upload broke off; the table stops at it.",
        "Upload the file again under the same name.",
    ),
    Rule(
        "file-unreadable",
        _ERROR,
        "A file is no readable Parquet.",
        "The table stops at it.",
        "Upload the file again under the same name.",
    ),
    Rule(
        "file-without-rows",
        _WARNING,
        "A file has no rows.",
        "This mirror takes it; the original is known to get stuck at one.",
        "Publish a file only when there are rows, or to fill a gap.",
    ),
    Rule(
        "file-without-columns",
        _ERROR,
        "A file has no data column.",
        "The table stops at it.",
        "Upload the file again under the same name, with the table's columns.",
    ),
    Rule(
        "text-unreadable",
        _ERROR,
        "A file is not delimited text as `_metadata.json` describes it.",
        "The table stops at it.",
        "Compare it with FileFormatTypeProperties, and upload it again under the same name.",
    ),
    Rule(
        "text-value",
        _ERROR,
        "A text is not of the type that is declared for its column.",
        "The table stops at the file.",
        "Correct the value or its DataType, and upload the file again under the same name.",
    ),
    # Markers
    Rule(
        "marker-type",
        _ERROR,
        "`__rowMarker__` is not of whole numbers.",
        "The table stops at the file.",
        "Write the markers as whole numbers: 0 insert, 1 update, 2 delete, 4 upsert.",
    ),
    Rule(
        "marker-value",
        _ERROR,
        "A row's marker is none of 0, 1, 2 and 4.",
        "The table stops at the file.",
        "Write 0 for an insert, 1 for an update, 2 for a delete, 4 for an upsert.",
    ),
    Rule(
        "marker-not-last",
        _WARNING,
        "`__rowMarker__` is not the last column.",
        "This mirror takes it anywhere; newer documents of the format want it last.",
        "Write the marker as the last column.",
    ),
    # Columns and types
    Rule(
        "column-twice",
        _ERROR,
        "Two columns of a file have one name, but for case.",
        "Nothing says which one is meant; the table stops at the file.",
        "Rename one of the two.",
    ),
    Rule(
        "column-reserved",
        _ERROR,
        "A column's name is taken by the engine or by Delta's change feed.",
        "The table stops at the file.",
        "Rename the column.",
    ),
    Rule(
        "column-missing",
        _WARNING,
        "A file lacks a column that the table has.",
        "It is NULL in the file's rows, those of updates among them.",
        "Publish every column with every insert and update.",
    ),
    Rule(
        "column-untyped",
        _ERROR,
        "All columns have only NULLs, so that none has a type.",
        "No table can be made of it.",
        "Publish a row with values, or give the columns types.",
    ),
    Rule(
        "type-unsupported",
        _ERROR,
        "A column's type has no counterpart in the table.",
        "The table stops at the file rather than change values.",
        "Publish it as text, a whole number, or a decimal of at most 38 digits.",
    ),
    Rule(
        "type-changed",
        _ERROR,
        "A column's type is not the one that earlier files, or the declaration, gave it.",
        "The table stops at the file.",
        "Publish the values in the earlier type, or delete the folder and publish the table anew.",
    ),
    Rule(
        "type-widened",
        _WARNING,
        "A column's type holds more than the one that earlier files gave it.",
        "That works only as long as both are applied by one commit, or with `mirror --widen`.",
        "Publish all files of a column in one type, or mirror with --widen.",
    ),
    Rule(
        "type-misfit",
        _ERROR,
        "A column's type, published or declared, does not fit the mirrored table's.",
        "The table stops at the file.",
        "Publish the values in the table's type, or delete the folder and publish the table anew.",
    ),
    Rule(
        "type-nanoseconds",
        _WARNING,
        "A column has nanoseconds.",
        "They are cut to microseconds.",
        "Publish microseconds, or the nanoseconds as a whole number.",
    ),
)

BY_ID = {rule.id: rule for rule in RULES}
