"""The published folders are whole, and their cards say what their files compute."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT, make_transformer
from huggingface_hub import ModelCard
from transformers import AutoConfig, AutoModelForSeq2SeqLM

import hf_scratch
from hf_scratch.evaluation.metrics import score_translations
from hf_scratch.loading import hide_folders, load_tokenizer
from hf_scratch.manifest import write_json
from hf_scratch.reporting.cards import format_time, format_training, format_updates
from hf_scratch.reporting.records import Record, join_records, read_record, read_records
from hf_scratch.training.arguments import ModelArguments
from hf_scratch.training.model_loading import load_teachers

CARDS = ROOT / "model_cards"
TRANSLATOR, WRITER = CARDS / "scratch-transformer-multi30k-en-de", CARDS / "scratch-gpt-tinystories"
WAY_BACK, LARGER = CARDS / "scratch-transformer-multi30k-de-en", CARDS / "scratch-transformer-multi30k-en-de-7m"
sys.path.insert(0, str(ROOT / "scripts" / "publish"))


@pytest.fixture(params=[TRANSLATOR, LARGER, WAY_BACK, WRITER], ids=["translator", "larger", "way back", "writer"])
def folder(request):
    return request.param


def test_a_published_folder_is_a_whole_repository(folder):
    files = {path.name for path in folder.iterdir()}
    assert files >= {
        "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json", "learning_curve.png", "records", "RUNS.md", "evaluation.json",
    }  # fmt: skip
    assert (folder / "model.safetensors").stat().st_size < 20e6
    for document in ("README.md", "RUNS.md"):
        links = re.findall(r"\]\((?!https://)(.+?)\)", (folder / document).read_text(encoding="utf-8"))
        assert links
        assert files >= set(links)  # none leaves the folder


def test_its_code_is_the_packages_own(folder):
    code = Path(hf_scratch.__file__).parent / "models"
    copies = {path.name: path for path in folder.glob("*.py")}
    assert all(path.read_bytes() == (code / name).read_bytes() for name, path in copies.items())
    needed = {f"{target.split('.')[0]}.py" for target in AutoConfig.from_pretrained(folder).auto_map.values()}
    for path in copies.values():
        imported = re.findall(r"^from \.(\w+) import", path.read_text(encoding="utf-8"), re.M)
        needed |= {f"{name}.py" for name in imported}
    assert needed == copies.keys()
    assert len(copies) == (5 if "gpt" in folder.name else 6)


def test_its_card_is_what_its_figures_say(folder):
    card = ModelCard.load(folder / "README.md")
    assert card.data.license == "apache-2.0"
    assert card.data.datasets
    assert card.data.model_name == folder.name
    assert card.data.base_model == ("USER/scratch-transformer-multi30k-en-de" if folder == WAY_BACK else None)
    split = "validation" if folder == WRITER else "test"
    assert {result.dataset_split for result in card.data.eval_results} == {split}
    from results import make_card

    assert (folder / "README.md").read_text(encoding="utf-8") == make_card(folder.name)
    assert len(card.text.splitlines()) < 110
    parts = ["Intended use", "Data and licences", "Results", "Examples", "Training"]
    assert [line[3:] for line in card.text.splitlines() if line.startswith("## ")] == parts


@pytest.mark.parametrize(("translator", "language"), [(TRANSLATOR, "de"), (WAY_BACK, "en")], ids=["there", "back"])
def test_the_recorded_scores_are_those_of_the_recorded_translations(translator, language, multi30k):
    lines = Path(multi30k, "test.jsonl").read_text(encoding="utf-8").splitlines()
    references = [json.loads(line)[language] for line in lines]
    evaluation = json.loads((translator / "evaluation.json").read_text(encoding="utf-8"))
    seeds = sorted((translator / "records").glob("seed*.txt"))
    assert seeds
    for path in seeds:
        scores = score_translations(path.read_text(encoding="utf-8").splitlines(), references, language)
        for name, value in evaluation["runs"][path.stem].items():
            assert scores[name] == pytest.approx(value, abs=1e-4), name
        recorded = read_record(path.with_suffix(".json"))["metrics"]["test"]
        for name in recorded.keys() & scores.keys():
            assert recorded[name] == pytest.approx(scores[name], abs=1e-9), name


def test_the_larger_translator_is_a_teacher():
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(TRANSLATOR), load_tokenizer(TRANSLATOR)
    (teacher,) = load_teachers(AutoModelForSeq2SeqLM, [str(LARGER)], model, ModelArguments(), tokenizer)
    assert teacher.num_parameters() > 3 * model.num_parameters()
    assert {weight.dtype for weight in teacher.parameters()} == {torch.float32}


def test_a_published_model_has_the_tokenizer_of_its_run(tmp_path, joint_tokenizer):
    from publish import store_model

    folder, runs = tmp_path / "published", {}
    for name, tokenizer in (("first", joint_tokenizer), ("second", load_tokenizer(TRANSLATOR))):
        runs[name] = tmp_path / name
        make_transformer(vocab_size=len(tokenizer)).save_pretrained(runs[name])
        tokenizer.save_pretrained(runs[name])
    for name, dtype in (("first", "float32"), ("second", "bfloat16"), ("first", "float32")):
        store_model(AutoModelForSeq2SeqLM, runs[name], folder, dtype)
        assert load_tokenizer(folder).get_vocab() == load_tokenizer(runs[name]).get_vocab()
        assert AutoModelForSeq2SeqLM.from_pretrained(folder).dtype == getattr(torch, dtype)


@pytest.mark.parametrize(
    ("flags", "changes"),
    [
        ("--output_dir base --bf16 true --save_steps 7", ""),
        ("--output_dir=base --bf16=true --save-steps 7", ""),
        ("--max_steps 4 --warmup_steps 2 --max_steps 3", "`--max_steps 3` `--warmup_steps 2`"),
        ("--dataset_name runs/more", "`--dataset_name runs/more`"),
        ("--config_overrides norm_first=false --seed 2", "`--config_overrides norm_first=false` `--seed 2`"),
        ("--seed 2\npython x.py multi30k_tiny --seed 3", "`--seed 3`"),
        ("--teacher_models runs/a runs/b --max_steps 7", "`--teacher_models runs/a runs/b` `--max_steps 7`"),
        ("--config_overrides=norm_first=false", "`--config_overrides=norm_first=false`"),
    ],
)
def test_a_rows_changes_are_its_commands_flags(flags, changes):
    from result_tables import format_changes

    command = f"python scripts/train_translation.py multi30k_tiny --dataset_name multi30k {flags}"
    assert format_changes({"command": command, "recipe": "multi30k_tiny"}) == changes


@pytest.mark.parametrize(
    ("word", "public"),
    [
        ("/home/ada/multi30k", "multi30k"),
        ("../data/multi30k/", "multi30k"),
        ("--output_dir=/home/ada/runs/first", "--output_dir=first"),
        ("runs/first", "runs/first"),
        ("bentrevett/multi30k", "bentrevett/multi30k"),
        ("dropout=0.2,norm_first=false", "dropout=0.2,norm_first=false"),
    ],
)
def test_a_command_tells_no_folders_of_the_machine(word, public):
    assert hide_folders(word) == public


def make_record(command: str, updates: int, epochs: float, tokens: int, minutes: float) -> Record:
    log = [{"step": updates, "epoch": 0.5, "loss": 1.0}, {"step": updates, "num_input_tokens_seen": 7}]
    return {
        "command": command, "recipe": "multi30k_tiny", "parameters": 5, "data": "multi30k", "updates": updates,
        "epochs": epochs, "input_tokens": tokens, "minutes": minutes, "seed": 1,
        "hardware": {"processes": 1, "device": "x86_64", "cpu_cores": 2}, "software": {"torch": "2.13.0"},
        "weights": command, "metrics": {"validation": {"loss": 1.5}}, "log": log,
    }  # fmt: skip


def test_joined_records_tell_of_all_of_a_training():
    first = make_record("a --resume_from_checkpoint last", 1000, 2.5, 1500, 59.25)
    second = make_record("b --resume_from_checkpoint auto", 30, 1.0, 20, 2.5)
    joined = join_records([first, second])
    log = joined.pop("log")
    sums = {"command": "a\nb", "updates": 1030, "epochs": 3.5, "input_tokens": 1520, "minutes": 61.75}
    assert joined == {key: value for key, value in second.items() if key != "log"} | sums
    assert [entry["step"] for entry in log] == [1000, 1000, 1030, 1030]
    assert [entry.get("epoch") for entry in log] == [0.5, None, 3.0, None]
    assert [entry.get("num_input_tokens_seen") for entry in log] == [None, 7, None, 1507]
    assert join_records([second]) == second | {"command": "b"}
    apart = join_records([first, second | {"data": "more pairs"}])
    assert (apart["epochs"], apart["updates"], apart["data"]) == (None, 1030, "more pairs")
    assert [entry.get("epoch") for entry in apart["log"]] == [None] * 4


def test_a_record_that_is_cut_off_leaves_the_earlier_one(tmp_path, monkeypatch):
    earlier = make_record("b", 12000, 100.80672, 44714518, 161.845)
    write_json(earlier, tmp_path / "b.json")
    assert [path.name for path in tmp_path.iterdir()] == ["b.json"]

    def stop_halfway(path, text, **kwargs):
        path.write_bytes(text[:20].encode())
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", stop_halfway)
    with pytest.raises(KeyboardInterrupt):
        write_json(earlier | {"seed": 2}, tmp_path / "b.json")
    assert read_records(tmp_path) == {"b": earlier}


def test_a_records_values_are_formatted_for_the_card():
    record = make_record("b", 12000, 100.80672, 44714518, 161.845)
    assert (format_updates(record), format_time(record)) == ("12,000 (100.8 epochs)", "162 minutes")
    table = format_training(record, AutoConfig.from_pretrained(TRANSLATOR))
    for row in ("input tokens | 44,714,518", "hardware | 1 x x86_64, 2 CPU cores", "software | torch 2.13.0"):
        assert f"| {row} |" in table
    stopped = record | {"stopped": "interrupted", "epochs": None, "minutes": None}
    assert (format_updates(stopped), format_time(stopped)) == ("12,000 (stopped)", "")


@pytest.mark.slow
def test_every_figure_is_computed_again(multi30k, tinystories):
    data = ["--multi30k", multi30k, "--tinystories", tinystories]
    command = [sys.executable, str(ROOT / "scripts" / "publish" / "results.py"), *data]
    run = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    code = sorted((ROOT / "model_cards").glob("*/*.py"))
    # three files of each folder and its code, and READMEs with tables
    assert run.stdout.count("is what its figures say") == 3 * 4 + len(code) + 4
