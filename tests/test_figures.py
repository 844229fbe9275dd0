# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Every generated table of the READMEs shows what its JSON holds."""

import copy
import sys

import pytest
from conftest import ROOT

from hf_scratch.reporting.tables import format_table

sys.path[:0] = [str(ROOT / "scripts" / "publish"), str(ROOT / "scripts" / "benchmark")]


def test_the_readmes_tables_are_those_of_their_json():
    import results

    tables = results.list_tables()
    assert len(tables) == 4
    assert all(
        results.update_file(readme, results.replace_blocks(readme, blocks), write=False)
        for readme, blocks in tables.items()
    )


def test_a_block_is_compared_and_written_between_its_markers(tmp_path, capsys):
    from benchmark_tables import replace_blocks, update_file

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


def test_two_machines_stand_side_by_side():
    import benchmark_tables as tables

    [first, *_] = tables.read_reports("benchmark")
    second = copy.deepcopy(first)
    second["machine"] |= {"cpu": "AMD EPYC", "features": ["AVX-512"]}
    assert tables.file_name(second["machine"]) == "amd-epyc-avx-512.json"
    second["rows"] = second["rows"][1:]  # the first row was not measured there
    lines = tables.format_ratios([first, second], [row["name"] for row in first["rows"]]).splitlines()
    assert lines[0].endswith(f"| {tables.name_machine(first['machine'])} | AMD EPYC (AVX-512) |")
    ratios = [[cell.strip() for cell in line.split("|")[3:5]] for line in lines[2:]]
    expected = [tables.format_ratio(row) for row in first["rows"]]
    assert ratios == [[ratio, ratio if i else ""] for i, ratio in enumerate(expected)]
    assert tables.format_benchmark([first, second]).count("### ") == 2
