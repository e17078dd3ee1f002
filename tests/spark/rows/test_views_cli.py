"""The command `view`, in this process for the session's sake."""

from __future__ import annotations

from typing import Any

from mirrorlake import Lake


def test_view(lake: Lake, run: Any) -> None:
    table = lake.create_table("`odd ``table```", {"it's": "STRING", "n o": "DECIMAL(5, 2)"})
    lake.spark.sql(f"INSERT INTO {table.sql_name} VALUES ('a', 1.5), ('b', 2.5), ('a', NULL)")
    root = lake.storage.root
    sql = "SELECT `it's` AS `k \"`, sum(`n o`) AS `s,` FROM `odd ``table```  GROUP BY `it's`"
    made = run("view", root, "create", "w.sums", "--sql", sql, "--json")
    assert (made["mode"], made["reason"]["code"], made["rows"]) == (
        "full",
        "FIRST",
        {"inserted": 2},
    )
    lake.spark.sql(f"UPDATE {table.sql_name} SET `n o` = 9 WHERE `it's` = 'b'")
    found = run("view", root, "explain", "w.sums", "--json")
    assert (found["method"], found["sql"]) == ("sums", sql)
    assert [(s["shown"], s["newest"], s["by"]) for s in found["sources"]] == [(1, 2, "feed")]
    assert found["last_seconds"].keys() == {"full"}
    assert found["expected_seconds"].keys() == {"full", "incremental"}
    assert "what came is added" in run("view", root, "explain", "w.sums").out
    (state,) = run("status", root, "--json")["views"]
    assert (state["view"], state["state"], state["version"]) == ("w.sums", "behind", 1)
    assert state["sources"] == [{"table": str(table.name), "shown": 1, "newest": 2}]
    assert "1 of 2" in run("status", root).out
    done = run("view", root, "refresh", "w.sums", "--incremental", "--check", "--json")
    assert (done["mode"], done["changed"], done["differences"]) == ("incremental", 2, 0)
    assert run("status", root, "--json")["views"][0]["lag_seconds"] == 0
    rows = run("sql", root, "SELECT * FROM w.sums ORDER BY 1", "--json")["rows"]
    assert rows == [{'k "': "a", "s,": "1.50"}, {'k "': "b", "s,": "9.00"}]
    assert "ASKED" in run("view", root, "refresh", "w.sums", "--full").out
    lake.spark.sql(f"DELETE FROM {lake.table('w.sums').sql_name} WHERE `k \"` = 'a'")
    assert "lacks 1 rows" in run("view", root, "check", "w.sums", status=1).out
    assert run("view", root, "list", "--json")["views"][0]["view"] == "w.sums"
    assert (
        "exclude each other"
        in run("view", root, "refresh", "w.sums", "--full", "--incremental", status=2).err
    )
    assert "needs a query" in run("view", root, "create", "x", status=2).err
    assert "needs a view" in run("view", root, "refresh", status=2).err
    assert run("view", root, "drop", "w.sums", "--json") == {"dropped": "w.sums"}
    assert "There is no view" in run("view", root, "refresh", "w.sums", status=1).err
