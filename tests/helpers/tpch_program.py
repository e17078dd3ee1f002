"""Generate TPC-H with DuckDB; run in an environment with DuckDB, without mirrorlake. See tpch.py.

Arguments: the folder for the files, and a JSON document with the settings.
"""

import json
import sys
from pathlib import Path

import duckdb

Keys = dict[str, list[str]]
MARKER = "__rowMarker__"  # 2: delete, 4: upsert
# Copies differ from their originals in values by which queries sort, so that LIMIT has no ties.
ORDERS = """
INSERT INTO new_orders
SELECT *, 2 FROM orders SEMI JOIN deleted USING (o_orderkey)
UNION ALL
SELECT * REPLACE (o_orderkey + {most} AS o_orderkey, o_totalprice + 0.07 AS o_totalprice), 4
FROM orders SEMI JOIN copied USING (o_orderkey)
UNION ALL
SELECT * REPLACE (o_totalprice + 1 AS o_totalprice, o_orderdate + 1 AS o_orderdate), 4
FROM orders SEMI JOIN updated USING (o_orderkey)
"""
LINES = """
INSERT INTO new_lineitem
SELECT *, 2 FROM lineitem SEMI JOIN deleted ON l_orderkey = o_orderkey
UNION ALL
SELECT * REPLACE (l_orderkey + {most} AS l_orderkey, l_extendedprice + 0.07 AS l_extendedprice), 4
FROM lineitem SEMI JOIN copied ON l_orderkey = o_orderkey
UNION ALL
SELECT * REPLACE (
    l_quantity + 1 AS l_quantity, l_extendedprice + 1 AS l_extendedprice,
    l_shipdate + 1 AS l_shipdate
), 4
FROM lineitem SEMI JOIN updated ON l_orderkey = o_orderkey
"""
PARTS = """
INSERT INTO new_partsupp
SELECT * REPLACE (ps_availqty + 1 AS ps_availqty, ps_supplycost + 1 AS ps_supplycost), 4
FROM partsupp WHERE hash(ps_partkey, ps_suppkey, {cycle}) % {nth} = 0
"""


def main(folder: Path, scale: float, cycles: int, nth: int, answers: bool, keys: Keys) -> None:
    connection = duckdb.connect(str(folder / "tpch.duckdb"))
    packages = Path(duckdb.__file__).parent.parent
    (extension,) = packages.glob("duckdb_extension_tpch/**/tpch.duckdb_extension")
    connection.execute(f"LOAD '{extension}'; CALL dbgen(sf={scale})")
    for table in keys:
        connection.execute(f"COPY {table} TO '{folder}/{table}.parquet'")
    found = connection.execute("SELECT query_nr, query FROM tpch_queries()").fetchall()
    queries = {number: sql.strip().rstrip(";") for number, sql in found}
    (folder / "queries.json").write_text(json.dumps(queries))
    for cycle in range(cycles + 1):
        if cycle:
            change(connection, folder / f"changes_{cycle}", cycle, nth, keys)
        if answers:
            target = folder / f"answers_{cycle}"
            target.mkdir()
            for number, sql in queries.items():
                connection.execute(f"COPY ({sql}) TO '{target}/{number}.parquet'")


def change(
    connection: duckdb.DuckDBPyConnection, folder: Path, cycle: int, nth: int, keys: Keys
) -> None:
    """Write the changes of a cycle, and apply them to DuckDB's tables."""
    folder.mkdir()
    for number, name in enumerate(("deleted", "copied", "updated")):
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT o_orderkey FROM orders"
            f" WHERE hash(o_orderkey, {cycle}) % {3 * nth} = {number}"
        )
    ((most,),) = connection.execute("SELECT max(o_orderkey) FROM orders").fetchall()
    statements = {"orders": ORDERS, "lineitem": LINES, "partsupp": PARTS}
    for table, statement in statements.items():
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE new_{table} AS SELECT *, 0 AS {MARKER} FROM {table}"
            " LIMIT 0"
        )
        connection.execute(statement.format(most=most, cycle=cycle, nth=nth))
        connection.execute(f"COPY new_{table} TO '{folder}/{table}.parquet'")
    for table in statements:
        key = ", ".join(keys[table])
        connection.execute(
            f"DELETE FROM {table} WHERE ({key}) IN (SELECT ({key}) FROM new_{table});"
            f"INSERT INTO {table} SELECT * EXCLUDE {MARKER} FROM new_{table} WHERE {MARKER} <> 2"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), **json.loads(sys.argv[2]))
