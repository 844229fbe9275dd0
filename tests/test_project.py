# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The project's own files agree: pinned versions, the Makefile's targets and their help."""

import os
import re
import subprocess
import tomllib

import pytest
import yaml
from conftest import ROOT
from packaging.requirements import Requirement

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    return {name.lower(): version for name, version in (line.split("==") for line in lines)}


def test_pre_commit_runs_the_ruff_of_the_constraints():
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert repo["rev"] == f"v{pinned()['ruff']}"


def test_each_dependency_is_pinned_to_a_version_that_is_allowed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    for line in (line for group in groups for line in group):
        requirement = Requirement(line)
        assert pinned()[requirement.name.lower()] in requirement.specifier, line


def test_make_help_lists_every_target():
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    listed = re.findall(r"^  make (\S+) +\S", done.stdout, re.M)
    phony = re.search(r"^\.PHONY: (.+)$", MAKEFILE, re.M)[1].split()
    assert sorted(listed) == sorted(phony)


# stands for Python: it logs its arguments, makes the output folder, and fails in the third stage while BROKEN exists
STUB = """#!/bin/sh
echo "$*" >> "$LOG"
[ -e "$BROKEN" ] && [ $(wc -l < "$LOG") = 3 ] && exit 1
while [ $# -gt 1 ]; do
    [ "$1" = --output_dir ] && mkdir -p "$2"
    shift
done
"""


CHAINS = {"recipes/multi30k": 12, "recipes/tinystories": 8, "benchmark/stock_gpt2": 8, "benchmark/held_out": 21}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_trainings_goes_on_where_it_stopped(tmp_path, name):
    stub, log, broken = (tmp_path / each for each in ("stub", "log", "broken"))
    stub.write_text(STUB, encoding="utf-8")
    stub.chmod(0o755)
    broken.touch()

    def run() -> int:
        environment = os.environ | {"PYTHON": str(stub), "LOG": str(log), "BROKEN": str(broken)}
        script = ROOT / "scripts" / f"{name}.sh"
        return subprocess.run([script, "data", tmp_path / "runs", "--bf16", "true"], env=environment).returncode

    assert run() == 1
    broken.unlink()
    assert run() == run() == 0
    calls = log.read_text(encoding="utf-8").splitlines()
    assert calls[2] == calls[3]
    assert len(set(calls)) == len(calls) - 1 == CHAINS[name]
    trainings = [call for call in calls if "scripts/train_" in call]
    assert all("--bf16 true" in call and "--resume_from_checkpoint auto" in call for call in trainings)
    assert all((ROOT / "scripts" / "recipes" / f"{call.split()[1]}.yaml").is_file() for call in trainings)
