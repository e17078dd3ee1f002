"""Every rule of the linter: what it finds, why that matters, what to do.

`python -m mirrorlake.lint.rules` prints them as the page `docs/lint.md`; a test compares the two.
"""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass

from mirrorlake import lint

ERROR, WARNING = "error", "warning"  # only errors make the command's exit status 1


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        id: its name; it never changes.
        severity: `ERROR` or `WARNING`.
        what: what is found, as one sentence.
        why: what comes of it.
        fix: what to do, in the imperative.
    """

    id: str
    severity: str
    what: str
    why: str
    fix: str


def _error(name: str, what: str, why: str, fix: str) -> Rule:
    return Rule(name, ERROR, what, why, fix)


def _warning(name: str, what: str, why: str, fix: str) -> Rule:
    return Rule(name, WARNING, what, why, fix)


RULES: tuple[Rule, ...] = (
    _error(
        "zone-missing",
        "There is no landing zone, or nothing in it.",
        "A mistyped root would look like a clean zone.",
        "Pass the folder that has Files/LandingZone in it, or publish a table first.",
    ),
    _warning(
        "partner-missing",
        "The zone has no `_partnerEvents.json`.",
        "Nobody can tell from the zone who publishes into it.",
        "Put a _partnerEvents.json with partnerName and sourceInfo at the zone's root.",
    ),
    _warning(
        "partner-invalid",
        "`_partnerEvents.json` is not JSON, or a field of it is missing or not text.",
        "Fabric's monitoring shows who publishes by it.",
        "Write it again with partnerName, and sourceInfo with sourceType in it, as texts.",
    ),
    _error(
        "folder-name",
        "A folder's name can't become a table's.",
        "It could leave its place, hides the table, or no file system takes it everywhere; the "
        "mirror refuses the folder.",
        "Rename the folder.",
    ),
    _warning(
        "folder-hidden",
        "A folder whose name starts with `_` holds a table's files.",
        "Such folders are ignored: nothing of it is mirrored.",
        "Rename the folder without the underscore, or move its files away.",
    ),
    _error(
        "folder-clash",
        "A table is named like a schema.",
        "The one's Delta table would lie in the other's folder, and VACUUM would delete its files; "
        "the mirror refuses the table.",
        "Rename one of the two folders.",
    ),
    _error(
        "folder-case",
        "Two folders' names differ at most by case.",
        "SQL finds tables without regard to case, and many file systems take the two for one.",
        "Rename one of the two folders.",
    ),
    _warning(
        "folder-empty",
        "A table's folder has no data file, and no columns are declared for it.",
        "No table can be made of it.",
        "Publish the table's first file, declare its columns, or delete the folder.",
    ),
    _warning(
        "folder-nested",
        "A folder lies in a table's folder.",
        "Only the files directly in a table's folder are mirrored. Spark writes such folders when "
        "it is asked for a file.",
        "Move its files up under the next free numbers, or rename it with a leading underscore.",
    ),
    _error(
        "folder-identity",
        "`_mirrorlake.json`, by which the mirror recognises the folder, is broken, or newer.",
        "The mirror can't tell which of the files it has applied, and stops.",
        "Upgrade mirrorlake if it is newer; else delete the folder, and publish the table again.",
    ),
    _error(
        "folder-taken",
        "There is a Delta table of the folder's name that the mirror did not make.",
        "The mirror never overwrites somebody else's table.",
        "Rename the folder, or move that table away.",
    ),
    _error(
        "folder-unreadable",
        "A folder, or the log of its Delta table, can't be read.",
        "Nothing more can be checked, and the mirror stops at the table, too.",
        "Look at what the message names, and lint again.",
    ),
    _error(
        "metadata-unreadable",
        "`_metadata.json` is not a JSON object.",
        "The table stops; its files can't be checked, either.",
        'Write it again, as {"keyColumns": ["id"]}.',
    ),
    _error(
        "metadata-invalid",
        "A field of `_metadata.json` makes no sense, or occurs twice.",
        "The table stops until it is corrected.",
        "Correct the field.",
    ),
    _warning(
        "metadata-unknown",
        "A field of `_metadata.json` is not part of the format.",
        "It is ignored; a mistyped keyColumns means a table without keys.",
        "Correct the field's name, or remove the field.",
    ),
    _error(
        "metadata-name",
        "A file is named nearly, but not quite, `_metadata.json`.",
        "It is ignored: the table has no keys, and the files are read by defaults.",
        "Rename it to _metadata.json.",
    ),
    _error(
        "metadata-missing",
        "Rows ask for updates, deletes or upserts, and there is no `_metadata.json`.",
        "Without keys no row is found again; the table stops.",
        'Put a _metadata.json into the table\'s folder, as {"keyColumns": ["id"]}.',
    ),
    _error(
        "key-undeclared",
        "Rows ask for updates, deletes or upserts, and `_metadata.json` declares no keys.",
        "Without keys no row is found again; the table stops.",
        "Declare keyColumns in _metadata.json.",
    ),
    _error(
        "key-changed",
        "The declared keys are not those of the mirrored table.",
        "Keys may be added to a table without any, never changed; the table stops.",
        "Restore keyColumns, or delete the table's folder and publish the table again.",
    ),
    _error(
        "key-unknown",
        "No file has a column that is declared as a key.",
        "The table stops at its first file.",
        "Correct the name in keyColumns, or publish the column.",
    ),
    _error(
        "key-missing",
        "A file lacks a key column that other files have.",
        "Its rows can't be found in the table; the table stops at it.",
        "Upload the file again under the same name, with the column.",
    ),
    _error(
        "key-null",
        "A key is NULL.",
        "A row without its key can't be found again; the table stops at the file.",
        "Fill the key in, and upload the file again under the same name.",
    ),
    _error(
        "file-name",
        "A data file's name is not 20 digits and an ending.",
        "The mirror does not see it: its rows are never applied.",
        "Rename the file to the next free number, written with 20 digits.",
    ),
    _warning(
        "file-temporary",
        "A file is named as if somebody were still writing it.",
        "It is not applied until it has its final name, and other readers of the zone may take it.",
        "Finish it, then rename it to its number; start the names of unfinished files with _.",
    ),
    _error(
        "file-ending",
        "Nothing says how to read files of this ending.",
        "The table stops at the file.",
        "Publish .parquet or .csv, or name the ending as fileExtension in _metadata.json.",
    ),
    _error(
        "file-misplaced",
        "A data file, or a `_metadata.json`, lies outside any table's folder.",
        "Nothing reads it there.",
        "Move the file into its table's folder.",
    ),
    _warning(
        "file-unexpected",
        "A file is not part of the format.",
        "It is ignored.",
        "Remove the file, or start its name with an underscore.",
    ),
    _warning(
        "file-abandoned",
        "A file that was being staged has not changed for a day.",
        "Its writer has died, most likely, and its rows are not in the zone.",
        "Publish its rows again if they are missing, then delete the file.",
    ),
    _warning(
        "file-late",
        "A new file of a folder that is ordered by time is older than the last applied one.",
        "It is applied after files that were made later, so older values may replace newer ones.",
        "Check the rows it has in common with later files, and publish those again.",
    ),
    _error(
        "number-range",
        "A file's number is 0, or too large for the table's log.",
        "The table stops.",
        "Rename the file to the next free number; the first is 00000000000000000001.",
    ),
    _error(
        "number-twice",
        "Two files have one number.",
        "Nothing says which comes first; the table stops.",
        "Remove one of the two, or give it the next free number.",
    ),
    _error(
        "number-gap",
        "A number is missing.",
        "The files behind it wait until it is there.",
        "Publish the missing file, even one without rows.",
    ),
    _error(
        "number-reused",
        "A file has a number that was applied before, with another content.",
        "It is never applied.",
        "Publish its rows under the next free number, then delete the file.",
    ),
    _warning(
        "number-lost",
        "The last applied file is gone from the table's folder.",
        "Publishers that count by what lies there begin again at 1, and nothing of it is applied.",
        "Move the file back from _ProcessedFiles, or go on with the number after it.",
    ),
    _error(
        "file-zero-bytes",
        "A file has zero bytes.",
        "Its upload broke off; the table stops at it.",
        "Upload the file again under the same name.",
    ),
    _error(
        "file-unreadable",
        "A file is not readable as Parquet.",
        "The table stops at it.",
        "Upload the file again under the same name.",
    ),
    _warning(
        "file-without-rows",
        "A file has no rows.",
        "This mirror takes it; Fabric is known to get stuck at one.",
        "Publish a file only when there are rows, or to fill a gap.",
    ),
    _error(
        "file-without-columns",
        "A file has no data column.",
        "The table stops at it.",
        "Upload the file again under the same name, with the table's columns.",
    ),
    _error(
        "text-unreadable",
        "A file is not delimited text as `_metadata.json` describes it.",
        "The table stops at it.",
        "Compare it with FileFormatTypeProperties, and upload it again under the same name.",
    ),
    _error(
        "text-value",
        "A text is not of the type that is declared for its column.",
        "The table stops at the file.",
        "Correct the value or its DataType, and upload the file again under the same name.",
    ),
    _error(
        "marker-type",
        "`__rowMarker__` is not of whole numbers.",
        "The table stops at the file.",
        "Write the markers as whole numbers: 0 insert, 1 update, 2 delete, 4 upsert.",
    ),
    _error(
        "marker-value",
        "A row's marker is not 0, 1, 2 or 4.",
        "The table stops at the file.",
        "Write 0 for an insert, 1 for an update, 2 for a delete, 4 for an upsert.",
    ),
    _warning(
        "marker-not-last",
        "`__rowMarker__` is not the last column.",
        "This mirror takes it anywhere; newer documents of the format want it last.",
        "Write the marker as the last column.",
    ),
    _error(
        "column-twice",
        "Two columns of a file have one name, but for case.",
        "Nothing says which one is meant; the table stops at the file.",
        "Rename one of the two.",
    ),
    _error(
        "column-reserved",
        "A column's name is taken by the engine or by Delta's change feed.",
        "The table stops at the file.",
        "Rename the column.",
    ),
    _warning(
        "column-missing",
        "A file lacks a column that the table has.",
        "It is NULL in the file's rows, those of updates among them.",
        "Publish every column with every insert and update.",
    ),
    _error(
        "column-untyped",
        "All columns have only NULLs, so that none has a type.",
        "No table can be made of it.",
        "Publish a row with values, or give the columns types.",
    ),
    _error(
        "type-unsupported",
        "A column's type has no counterpart in the table.",
        "The table stops at the file rather than change values.",
        "Publish it as text, a whole number, or a decimal of at most 38 digits.",
    ),
    _error(
        "type-changed",
        "A column's type is not the one that earlier files, or the declaration, gave it.",
        "The table stops at the file.",
        "Publish the values in the earlier type, or delete the folder and publish the table again.",
    ),
    _warning(
        "type-widened",
        "A column's type holds more than the one that earlier files gave it.",
        "That works only as long as both are applied by one commit, or with `mirror --widen`.",
        "Publish all files of a column in one type, or mirror with --widen.",
    ),
    _error(
        "type-misfit",
        "A column's type, published or declared, does not fit the mirrored table's.",
        "The table stops at the file.",
        "Publish the values in the table's type, or delete the folder and publish the table again.",
    ),
    _warning(
        "type-nanoseconds",
        "A column has nanoseconds.",
        "They are cut to microseconds.",
        "Publish microseconds, or the nanoseconds as a whole number.",
    ),
)

BY_ID = {rule.id: rule for rule in RULES}
# The page's headings, by the rule that comes first below them.
_HEADINGS = {
    "zone-missing": "The zone",
    "folder-name": "Folders",
    "metadata-unreadable": "`_metadata.json`",
    "key-undeclared": "Keys",
    "file-name": "Names and numbers of files",
    "file-zero-bytes": "Contents of files",
    "marker-type": "Markers",
    "column-twice": "Columns and types",
}


def as_page() -> str:
    """The rules in Markdown, after what the package says of itself."""
    page = f"# The linter's rules\n\n{lint.__doc__}"
    for rule in RULES:
        if rule.id in _HEADINGS:
            page += f"\n## {_HEADINGS[rule.id]}\n"
        text = textwrap.fill(f"{rule.what} {rule.why}", 100, break_on_hyphens=False)
        page += f"\n### `{rule.id}`: {rule.severity}\n\n{text}\n\nFix: {rule.fix}\n"
    return page


if __name__ == "__main__":
    sys.stdout.write(as_page())
