# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The project's own files agree: pinned versions, the Makefile's targets and their help."""

import re
import subprocess
import tomllib

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


def test_make_resumes_both_trainings():
    """The second training starts if it was never reached, so both take "auto"."""
    command = ["make", "--dry-run", "multi30k", "RESUME=1", "DATA=folder", "OUT=runs/x"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    trainings = [line for line in done.stdout.splitlines() if "scripts/train_translation.py" in line]
    assert len(trainings) == 2
    assert all("--resume_from_checkpoint auto" in line for line in trainings)
