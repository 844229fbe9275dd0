# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The READMEs are true: what they name exists, their links resolve, and their Python runs."""

import ast
import importlib
import re
import subprocess
import sys

import pytest
from conftest import ROOT

FOLDERS = ("hf_scratch", "model_cards", "scripts", "tests")
DOCUMENTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/README.md")))
}
# the changelog names what no longer exists
READMES = {name: text for name, text in DOCUMENTS.items() if name != "CHANGELOG.md"}
MAPS = "hf_scratch/models/README.md"


@pytest.fixture(params=READMES)
def name(request) -> str:
    return request.param


def python_blocks(text: str) -> list[tuple[bool, str]]:
    """Each ```python block, and whether the line before it is `<!-- run -->`."""
    blocks = re.findall(r"(<!-- run -->\n)?```python\n(.*?)```", text, flags=re.S)
    return [(bool(marker), code) for marker, code in blocks]


def heading_anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def all_tests() -> set[str]:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py"))
    return set(re.findall(r"def (test_\w+)\(", sources))


def test_each_row_of_works_with_names_tests_that_exist():
    section = READMES["tests/README.md"].split("## Works with")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 15
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named, row
        assert set(named) <= all_tests(), row


def test_named_tests_exist(name):
    assert set(re.findall(r"`(test_\w+)`", READMES[name])) <= all_tests()


def test_named_files_and_folders_exist(name):
    """Paths from the root, such as `scripts/demo.py` or `tests/`, and names of files in a README's own folder."""
    text = READMES[name]
    for path in re.findall(rf"(?<![\w/.])(?:{'|'.join(FOLDERS)})/[\w./-]*", text):
        assert (ROOT / path.rstrip(".")).exists(), path
    folder = (ROOT / name).parent
    for path in re.findall(r"^\| `([\w.-]+\.py)`", text, flags=re.M):
        assert (folder / path).is_file(), path


def test_named_make_targets_exist(name):
    code = "\n".join(re.findall(r"^```.*?^```|`[^`\n]+`", READMES[name], flags=re.S | re.M))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    assert set(re.findall(r"\bmake ([a-z][\w-]*)", code)) <= targets


# cards name what was recorded, and CONTRIBUTING.md what to avoid
@pytest.mark.parametrize(
    "name", [name for name in READMES if name.endswith("README.md") and not name.startswith("model_cards/scratch")]
)
def test_names_in_prose_occur_in_the_code(name):
    """Each `name_with_underscores` or `CamelCase` in backticks is a word or the name of a source file, or a record."""
    files = {path.resolve() for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*")}
    files = [path for path in files if path.suffix in (".py", ".yaml")]
    words = set(re.findall(r"\w+", " ".join([path.stem + "\n" + path.read_text(encoding="utf-8") for path in files])))
    words |= {path.stem for path in ROOT.glob("model_cards/*/records/*.json")}
    prose = re.sub(r"^```.*?^```", "", READMES[name], flags=re.S | re.M)
    named = re.findall(r"`((?:[A-Za-z]\w*\.)*[A-Za-z_]\w*)`", prose)
    parts = {part for each in named for part in each.split(".") if "_" in part or re.search("[a-z][A-Z]", part)}
    parts = {part for part in parts if "scratch_encoder" not in part}  # the example of a family to add
    assert parts <= words, parts - words


def test_the_tree_shows_each_part_of_the_package():
    tree = READMES["README.md"].split("## Where things are")[1].split("```")[1]
    package = tree.split("hf_scratch/\n")[1].split("\nscripts/")[0]
    shown = {entry.rstrip("/") for entry in re.findall(r"(?<=  )\w+(?:/|\.py)(?=  )", package)}
    parts = {path.name for path in (ROOT / "hf_scratch").iterdir() if path.is_dir() or path.suffix == ".py"}
    assert shown == parts - {"__init__.py", "__pycache__"}


def test_every_recipe_is_described_once_and_every_described_recipe_exists():
    recipes = {path.stem for path in (ROOT / "scripts" / "recipes").glob("*.yaml")}
    rows = re.findall(r"\| recipe \|.*?\n\n", READMES["scripts/README.md"], flags=re.S)
    described = [
        recipe for row in rows for cell in re.findall(r"^\| (`.+?) \|", row, re.M) for recipe in cell.split(", ")
    ]
    assert sorted(described) == sorted(f"`{recipe}`" for recipe in recipes)
    named = re.findall(r"^\| `[\w-]+` \|(?:[^|]*\|){2} (`.+?) \|", READMES["hf_scratch/convert/README.md"], re.M)
    assert len(named) == 5
    assert {recipe.strip("`") for cell in named for recipe in cell.split(", ")} <= recipes


def test_every_command_is_described():
    commands = {path.name for path in (ROOT / "scripts").glob("*.py")} - {"__init__.py"}
    assert commands <= set(re.findall(r"^\| `scripts/(\w+\.py)`", READMES["scripts/README.md"], flags=re.M))


def test_links_resolve(name):
    for link in re.findall(r"\]\(([^)\s]+)\)", DOCUMENTS[name]):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        assert target.exists(), link
        if anchor:
            assert anchor in heading_anchors(target.read_text(encoding="utf-8")), link


def test_the_maps_name_functions_of_the_files_they_link_to():
    """In the tables with columns "function" and "file", each function or `Class.method` is defined in such a file."""
    checked = 0
    for table in re.findall(r"\| function \| file \|\n\|[-|]+\n((?:\|.+\n)+)", READMES[MAPS]):
        for row in table.splitlines():
            functions, files = row.strip("|").split("|")[-2:]
            links = re.findall(r"\]\((\S+)\)", files)
            sources = "\n".join(((ROOT / MAPS).parent / link).read_text(encoding="utf-8") for link in links)
            for function in re.findall(r"`([\w.]+)`", functions) if links else ():
                for part in function.split("."):
                    assert re.search(rf"^ *(?:def|class) {part}\b", sources, flags=re.M), (function, links)
                checked += 1
    assert checked > 40


def test_readme_is_short():
    assert len((ROOT / "README.md").read_bytes()) < 8192


def test_python_blocks_parse_and_import_what_exists(name):
    for _, code in python_blocks(READMES[name]):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    importlib.import_module(alias.name)
            elif isinstance(node, ast.ImportFrom):
                module = importlib.import_module(node.module)
                assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)


@pytest.mark.slow
def test_marked_python_blocks_run(name):
    """In the repository's root, as the READMEs say, each block in a process of its own."""
    for is_marked, code in python_blocks(READMES[name]):
        if is_marked:
            run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
            assert run.returncode == 0, run.stderr[-3000:]


def test_some_python_blocks_are_marked_to_run():
    marked = {name for name, text in READMES.items() if any(is_marked for is_marked, _ in python_blocks(text))}
    assert {"README.md", MAPS, "hf_scratch/convert/README.md"} <= marked
