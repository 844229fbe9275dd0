# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Every generated table of the READMEs shows what its JSON holds."""

import json
import sys

import pytest
from conftest import ROOT

from hf_scratch.reporting.tables import format_table

sys.path[:0] = [str(ROOT / "scripts" / "publish"), str(ROOT / "scripts" / "benchmark")]


def test_the_readmes_tables_are_those_of_their_json():
    import results

    tables = results.list_tables()
    assert len(tables) == 4 + 4  # READMEs, and the folders' RUNS.md
    assert all(
        results.update_file(readme, results.replace_blocks(readme, blocks), write=False)
        for readme, blocks in tables.items()
    )


def test_a_block_is_compared_and_written_between_its_markers(tmp_path, capsys):
    from results import replace_blocks, update_file

    path = tmp_path / "README.md"
    path.write_text("a\n<!-- speed -->\n| 1.00 |\n<!-- /speed -->\nb\n", encoding="utf-8")
    text = replace_blocks(path, {"speed": "| 2.00 |"})
    assert update_file(path, text, write=False) is False
    assert "-| 1.00 |\n+| 2.00 |\n" in capsys.readouterr().out
    assert update_file(path, text, write=True) is True
    assert update_file(path, text, write=False) is True
    assert path.read_text(encoding="utf-8") == "a\n<!-- speed -->\n| 2.00 |\n<!-- /speed -->\nb\n"
    with pytest.raises(ValueError, match="unpack"):
        replace_blocks(path, {"results": "| 2.00 |"})


def test_cells_are_formatted():
    table = format_table(["a", "b"], [[1.005, 3], ["x", 2.0]])
    assert table.splitlines() == ["| a | b |", "| --- | --- |", "| 1.00 | 3 |", "| x | 2.00 |"]


def test_rows_that_are_measured_again_take_the_place_of_kept_ones(tmp_path, monkeypatch):
    import measuring
    from tables import format_benchmark, read_machines

    row = read_machines("benchmark")[0]["rows"][0]
    monkeypatch.setattr(measuring, "RESULTS", tmp_path)
    other = row | {"name": "other", "date": "2026-12-01", "measures": {"hf_scratch": [1.0, 2.0], "peer": [3.0, 4.0]}}
    for rows in ([row, other], [row | {"note": "again"}]):
        measuring.keep_rows("benchmark", rows)
    measuring.keep_rows("benchmark", [row | {"name": "gone"}], [row["name"], "other", "not measured yet"])
    (path,) = tmp_path.glob("benchmark/*.json")
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert [(each["name"], each["note"]) for each in rows] == [(row["name"], "again"), ("other", other["note"])]
    table = format_benchmark(rows)
    assert "| **2.50** | 2.00 to 3.00 | 2 | hf_scratch 1.500 s | peer 3.500 s |" in table
    assert f"{row['date']}, torch {row['torch']}" in table
    assert "2026-12-01" in table
