# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""README keeps its word: the tests, files and make targets that it names are there."""

import re

from conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_each_row_of_works_with_names_tests_that_exist():
    section = README.split("## Works with")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py"))
    existing = set(re.findall(r"def (test_\w+)\(", sources))
    assert len(rows) > 15
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named, row
        assert set(named) <= existing, row


def test_files_and_make_targets_exist():
    for path in re.findall(r"(?:scripts|hf_scratch|tests)/[\w/]+\.(?:py|yaml)", README):
        assert (ROOT / path).is_file(), path
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    assert set(re.findall(r"\bmake ([a-z][\w-]*)", README)) <= targets
