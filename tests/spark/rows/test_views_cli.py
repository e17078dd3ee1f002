"""The command `view`, which runs in this process to use its session."""

from __future__ import annotations

from typing import Any

from mirrorlake import Lake


def test_view(lake: Lake, run: Any) -> None:
    table = lake.create_table("`odd ``table```", {"it's": "STRING", "n o": "DECIMAL(5, 2)"})
    lake.spark.sql(f"INSERT INTO {table.sql_name} VALUES ('a', 1.5), ('b', 2.5), ('a', NULL)")
    root = lake.storage.root
    sql = "SELECT `it's` AS `k \"`, sum(`n o`) AS `s,` FROM `odd ``table```  GROUP BY `it's`"
    planned = run("view", "create", root, "w.sums", "--sql", sql, "--dry-run", "--json")
    assert (planned["mode"], planned["applied"]) == ("full", False)
    assert planned["sources"] == {str(table.name): {"from": None, "to": 1}}
    assert run("view", "list", root, "--json") == {"views": []}
    made = run("view", "create", root, "w.sums", "--sql", sql, "--json")
    assert (made["mode"], made["reason"]["code"], made["rows"]) == (
        "full",
        "FIRST",
        {"inserted": 2},
    )
    lake.spark.sql(f"UPDATE {table.sql_name} SET `n o` = 9 WHERE `it's` = 'b'")
    found = run("view", "explain", root, "w.sums", "--json")
    assert (found["method"], found["sql"]) == ("sums", sql)
    assert [(s["shown"], s["newest"], s["by"]) for s in found["sources"]] == [(1, 2, "feed")]
    assert found["last_seconds"].keys() == {"full"}
    assert found["expected_seconds"].keys() == {"full", "incremental"}
    assert "changes are added" in run("view", "explain", root, "w.sums").out
    (state,) = run("status", root, "--json")["views"]
    assert (state["view"], state["state"], state["version"]) == ("w.sums", "behind", 1)
    assert state["sources"] == [{"table": str(table.name), "shown": 1, "newest": 2}]
    assert "1 of 2" in run("status", root).out
    planned = run("view", "refresh", root, "w.sums", "--incremental", "--dry-run", "--json")
    assert (planned["mode"], planned["version"], planned["applied"]) == ("incremental", 1, False)
    assert run("status", root, "--json")["views"][0]["version"] == 1
    done = run("view", "refresh", root, "w.sums", "--incremental", "--check", "--json")
    assert (done["mode"], done["changed"], done["differences"]) == ("incremental", 2, 0)
    assert run("status", root, "--json")["views"][0]["lag_seconds"] == 0
    rows = run("sql", root, "SELECT * FROM w.sums ORDER BY 1", "--json")["rows"]
    assert rows == [{'k "': "a", "s,": "1.50"}, {'k "': "b", "s,": "9.00"}]
    assert "ASKED" in run("view", "refresh", root, "w.sums", "--full").out
    lake.spark.sql(f"DELETE FROM {lake.table('w.sums').sql_name} WHERE `k \"` = 'a'")
    assert "1 missing and" in run("view", "check", root, "w.sums", status=1).out
    assert run("view", "list", root, "--json")["views"][0]["view"] == "w.sums"
    assert (
        "exclude each other"
        in run("view", "refresh", root, "w.sums", "--full", "--incremental", status=2).err
    )
    assert "--apply does it" in run("view", "drop", root, "w.sums").out
    assert run("view", "drop", root, "w.sums", "--json")["dropped"] is None
    done = run("view", "drop", root, "w.sums", "--apply", "--json")
    assert done == {"dropped": "w.sums"}
    assert "There is no view" in run("view", "refresh", root, "w.sums", status=1).err
