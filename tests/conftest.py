# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Shared by the tests: tiny models of both families and their variants, a tiny tokenizer, and the real data sets."""

import gc
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

# Models this small run faster on one thread, also in the commands that tests start. On two threads, each operation
# waits for the other core, which may be busy with another test.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import WordPiece
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordPieceTrainer
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

from hf_scratch import (
    ScratchGPTConfig,
    ScratchGPTForCausalLM,
    ScratchGPTForMaskedLM,
    ScratchTransformerConfig,
    ScratchTransformerForConditionalGeneration,
)
from hf_scratch.cpu.decoder import IncrementalDecoder
from hf_scratch.tokenization import train_tokenizer

try:
    import hypothesis
except ModuleNotFoundError:  # the bare machine of `make gpu`
    pass
else:
    hypothesis.settings.register_profile("tests", derandomize=True, deadline=None)  # the same cases everywhere
    hypothesis.settings.load_profile("tests")

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "scripts"))  # where scripts find hf_scratch_launcher
DATA = Path(os.environ.get("HF_SCRATCH_DATA", ROOT.parent / "shared" / "data"))

GPT = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,  # large weights, so that differences between two computations show
    "embedding_dropout": 0.0,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TRANSFORMER = {
    "vocab_size": 60,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "dropout": 0.0,
    "max_position_embeddings": 40,
}


def make_gpt(**overrides) -> ScratchGPTForCausalLM | ScratchGPTForMaskedLM:
    torch.manual_seed(0)
    config = ScratchGPTConfig(**{**GPT, **overrides})
    return (ScratchGPTForCausalLM if config.is_causal else ScratchGPTForMaskedLM)(config).eval()


def make_transformer(**overrides) -> ScratchTransformerForConditionalGeneration:
    torch.manual_seed(0)
    return ScratchTransformerForConditionalGeneration(ScratchTransformerConfig(**{**TRANSFORMER, **overrides})).eval()


FAMILIES = {"gpt": make_gpt, "transformer": make_transformer}
AUTO = {"gpt": AutoModelForCausalLM, "transformer": AutoModelForSeq2SeqLM}
DROPOUT = {
    "gpt": {"attention_dropout": 0.2, "hidden_dropout": 0.1, "embedding_dropout": 0.1},
    "transformer": {"attention_dropout": 0.2, "dropout": 0.1, "activation_dropout": 0.1},
}

# The one list of configuration variants. Every way to compute a model is compared on each of them: the reference of
# the equations, incremental decoding, torch.export, the converters, the loss without logits. test_configuration.py
# fails when a configuration field is neither varied here nor listed in NOT_COMPUTED.
VARIANTS = {
    "gpt": {
        "defaults": {},
        "post-norm": {"norm_first": False, "final_layernorm": False},
        "embedding norm": {"embedding_layernorm": True},
        "sinusoidal positions": {"position_embedding_type": "sinusoidal", "hidden_act": "relu"},
        "epsilon": {"layer_norm_eps": 1e-2, "num_hidden_layers": 1},
        "no biases": {"attention_bias": False, "attention_output_bias": False, "hidden_act": "silu"},
        "untied": {"tie_word_embeddings": False},
        "untied with a bias": {"tie_word_embeddings": False, "lm_head_bias": True},
        "head width": {"num_attention_heads": 3, "head_dim": 10},
        "sizes": {
            "vocab_size": 70, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6,
            "intermediate_size": 20, "max_position_embeddings": 64,
        },
        "bidirectional": {"is_causal": False},
    },
    "transformer": {
        "defaults": {},
        "pre-norm": {"norm_first": True, "activation_function": "gelu"},
        "learned positions": {"position_embedding_type": "learned", "scale_embedding": False},
        "epsilon": {"layer_norm_eps": 1e-2, "activation_function": "silu"},
        "no biases": {"attention_bias": False, "attention_output_bias": False},
        "untied": {"tie_word_embeddings": False, "scale_embedding": False},
        "two vocabularies": {
            "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 70, "lm_head_bias": True,
        },
        "two vocabularies, untied": {
            "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 70, "tie_word_embeddings": False,
        },
        "head width": {"encoder_attention_heads": 3, "decoder_attention_heads": 5, "head_dim": 6},
        "value width": {"head_dim": 6, "v_head_dim": 7},
        "sizes": {
            "vocab_size": 70, "d_model": 48, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 6,
            "decoder_attention_heads": 3, "encoder_ffn_dim": 20, "decoder_ffn_dim": 28, "max_position_embeddings": 64,
        },
    },
}  # fmt: skip

# fields that do not change what a model computes from given weights and inputs in evaluation mode
NOT_COMPUTED = {
    "gpt": {
        "embedding_dropout", "hidden_dropout", "attention_dropout", "initializer_range", "initializer", "use_cache",
        "skip_logits", "pad_token_id", "bos_token_id", "eos_token_id",
    },
    "transformer": {
        "dropout", "attention_dropout", "activation_dropout", "init_std", "initializer", "use_cache", "skip_logits",
        "is_encoder_decoder", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "source_lang",
        "target_lang", "task",
    },
}  # fmt: skip


def each_variant(*families: str):
    """Parametrize a test with `family` and `variant`, a name in VARIANTS[family]; no argument: both families."""
    cases = [(family, variant) for family in families or VARIANTS for variant in VARIANTS[family]]
    return pytest.mark.parametrize(("family", "variant"), cases)


def make_variant(family: str, variant: str, **overrides):
    """The tiny model of a family, of that variant."""
    return FAMILIES[family](**{**VARIANTS[family][variant], **overrides})


def make_inputs_for(model, source: int = 9, target: int = 7, rows: int = 3) -> dict[str, torch.Tensor]:
    """Random ids of the model's vocabularies, unpadded: (rows, source) and (rows, target) for the encoder-decoder,
    (rows, target) for the GPT.
    """
    generator, config = torch.Generator().manual_seed(1), model.config
    if not config.is_encoder_decoder:
        return {"input_ids": torch.randint(3, config.vocab_size, (rows, target), generator=generator)}
    return {
        "input_ids": torch.randint(3, config.vocab_size, (rows, source), generator=generator),
        "decoder_input_ids": torch.randint(3, config.decoder_vocab_size, (rows, target), generator=generator),
    }


def shake(model):
    """Add noise to every parameter: biases of zero and LayerNorm weights of one would hide a missing one."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def pytest_collection_finish() -> None:
    gc.freeze()  # each training collects garbage: looking at all imported modules took most of its time


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.fixture
def model(family):
    return FAMILIES[family]()


@pytest.fixture
def inputs(family) -> dict[str, torch.Tensor]:
    return make_inputs_for(FAMILIES[family]())


@pytest.fixture
def labelled(family, inputs) -> dict[str, torch.Tensor]:
    """That batch for a training step, in which the second row ignores its last labels."""
    labels = inputs["input_ids" if family == "gpt" else "decoder_input_ids"].clone()
    labels[1, 4:] = -100
    return {"input_ids": inputs["input_ids"], "labels": labels}


def loss_and_gradients(model, inputs: dict, run=None, seed: int = 0) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Of a training step, by the model or by `run`, which is made of it."""
    torch.manual_seed(seed)
    model.zero_grad()
    loss = (model if run is None else run)(**inputs).loss
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_same_step(actual, expected) -> None:
    torch.testing.assert_close(actual[0], expected[0])
    torch.testing.assert_close(actual[1], expected[1], atol=1e-5, rtol=1e-4)


@pytest.fixture
def steps(monkeypatch) -> list:
    """The shape of the tokens in each step of an IncrementalDecoder, as it runs."""
    shapes, step = [], IncrementalDecoder.step

    def count(self, tokens):
        shapes.append(tokens.shape)
        return step(self, tokens)

    monkeypatch.setattr(IncrementalDecoder, "step", count)
    return shapes


@pytest.fixture(scope="session")
def joint_tokenizer():
    texts = ["A man sleeps.", "Ein Mann schläft.", "two dogs run", "zwei Hunde laufen"] * 5
    return train_tokenizer(texts, "joint", 300, 40, show_progress=False)


@pytest.fixture(scope="session")
def bert_tokenizer():
    """As bert-base-uncased: lower-cased WordPiece, `[CLS] text [SEP]`, and neither a start nor an end token."""
    specials = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = WordPieceTrainer(vocab_size=80, special_tokens=list(specials.values()), show_progress=False)
    tokenizer.train_from_iterator(["Once upon a time, a cat sat.", "Then it ran away!"] * 9, trainer)
    template = {"single": "[CLS] $A [SEP]", "special_tokens": [("[CLS]", 2), ("[SEP]", 3)]}
    tokenizer.post_processor = TemplateProcessing(**template)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{f"{name}_token": token for name, token in specials.items()}
    )


def find_data(name: str) -> str:
    if not (DATA / name / "train.jsonl").is_file():
        pytest.skip(f"a data set is missing: set HF_SCRATCH_DATA to the folder that holds `{name}`")
    return str(DATA / name)


@pytest.fixture(scope="session")
def multi30k() -> str:
    return find_data("multi30k")


@pytest.fixture(scope="session")
def tinystories() -> str:
    return find_data("tinystories")


@pytest.fixture
def one_process_group(tmp_path):
    """torch.distributed with this process alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.FileStore(str(tmp_path / "store"), 1), rank=0,
                                         world_size=1)  # fmt: skip
    yield
    torch.distributed.destroy_process_group()


def load_script(name: str) -> ModuleType:
    """A file of scripts/ as a module: "hold_out", "benchmark/choices"."""
    spec = importlib.util.spec_from_file_location(f"script_{name}", ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run_here(monkeypatch, capsys):
    """Runs a script in this process. A process of its own would import everything again."""

    def run(script: str, *flags, check: bool = True) -> subprocess.CompletedProcess:
        monkeypatch.setattr(sys, "argv", [str(ROOT / "scripts" / f"{script}.py"), *map(str, flags)])
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # no waiting for a network
        code = 0
        try:
            load_script(script).main()
        except SystemExit as ended:
            code = ended.code
        printed = capsys.readouterr()
        assert not check or code == 0, printed.err
        return subprocess.CompletedProcess(sys.argv, code, printed.out, printed.err)

    return run
