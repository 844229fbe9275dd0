# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Generation, translation and start-up that benchmark.py measures: ours and the peers' on the same work."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch
from training_cases import (
    ARTICLE,
    CTRANSLATE2,
    GPT2,
    LENGTH,
    MARIAN,
    OURS,
    VOCABULARY,
    BenchmarkArguments,
    Case,
    build,
    load_pairs,
    make_trainer,
)
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    MarianMTModel,
    PreTrainedModel,
)
from transformers.utils import ModelOutput

from hf_scratch import (
    ScratchGPTForCausalLM,
    TranslationPipeline,
)
from hf_scratch.convert import from_article, to_gpt2, to_marian
from hf_scratch.loading import load_tokenizer

# generation


def compare_generation(model: ScratchGPTForCausalLM, peer: str, generate: Callable) -> Case:
    prompt = torch.randint(3, VOCABULARY, (1, 8))
    ours = partial(model.eval().generate, prompt, max_new_tokens=200, do_sample=False)
    return Case({OURS: ours, peer: partial(generate, prompt)})


def generate_gpt(args: BenchmarkArguments) -> Case:
    model = build("gpt")
    return compare_generation(model, GPT2, partial(to_gpt2(model).generate, max_new_tokens=200, do_sample=False))


def generate_gpt_options(args: BenchmarkArguments) -> Case:
    """Three logits processors, and the scores returned."""
    options = {"min_new_tokens": 200, "repetition_penalty": 1.1, "no_repeat_ngram_size": 3, "do_sample": False}
    options |= {"max_new_tokens": 200, "return_dict_in_generate": True, "output_scores": True}
    model, prompt = build("gpt").eval(), torch.randint(3, VOCABULARY, (1, 8))
    peer = to_gpt2(model).eval()
    return Case({OURS: partial(model.generate, prompt, **options), GPT2: partial(peer.generate, prompt, **options)})


def generate_gpt_article(args: BenchmarkArguments) -> Case:
    """Compare with gpt-playground's own code, taken from the article's text: an untied head and the exact GELU."""
    paths = list(Path(args.articles).glob("000_*.txt"))
    if not paths:
        return Case({}, missing=f"there is no article 000 in {args.articles}")
    text, space = paths[0].read_text(encoding="utf-8"), {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)), space)
    sizes = {"n_layer": 6, "n_head": 4, "embedding_dim": 256, "vocab_size": VOCABULARY, "block_size": LENGTH}
    theirs = space["GPT"](**sizes).eval()
    model = from_article("gpt-playground", theirs.state_dict(), **sizes)
    return compare_generation(model, ARTICLE, partial(theirs.generate, required_chars=200))


def check_scores(ours: ModelOutput, theirs: ModelOutput) -> str:
    for own, other in zip(ours.scores, theirs.scores, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-3)
    return f"{check_tokens(ours.sequences, theirs.sequences)} and scores"


def check_tokens(ours: torch.Tensor, theirs: torch.Tensor) -> str:
    assert ours.shape[1] == 208
    assert torch.equal(ours, theirs)
    return "equal tokens"


# translation


def load_translator(args: BenchmarkArguments):
    """Load a trained model and its tokenizer, or train one. It is post-norm like Marian, unlike the recipe's."""
    folder = Path(args.model or Path(args.output_dir, "translator" if args.data else "translator_synthetic"))
    if args.model is None and not (folder / "config.json").is_file():
        tokenizer, train, _ = load_pairs(args.data)
        options = {"max_steps": 500, "warmup_steps": 200, "learning_rate": 2.5e-3, "bf16": True, "use_cpu": True}
        trainer = make_trainer(tokenizer, train, str(folder), {"norm_first": False, "dropout": 0.1}, **options)
        trainer.train()
        trainer.save_model()
        tokenizer.save_pretrained(folder)
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), load_tokenizer(folder)
    ids = {name: getattr(model.config, name) for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id")}
    model.generation_config = GenerationConfig(**ids, max_length=64, num_beams=5, early_stopping=True)
    return model.eval(), tokenizer


def translate(model: PreTrainedModel, tokenizer, sources: list[str], **options) -> list[str]:
    records = TranslationPipeline(model=model, tokenizer=tokenizer)(list(sources), batch_size=64, **options)
    return [record["translation_text"] for record in records]


def translate_as_stock(model: PreTrainedModel, tokenizer, sources: list[str], **options) -> list[str]:
    translations = []
    for begin in range(0, len(sources), 64):
        batch = tokenizer(sources[begin : begin + 64], padding=True, return_tensors="pt")
        output = model.generate(**batch, **options)
        translations += tokenizer.batch_decode(output, skip_special_tokens=True)
    return translations


def make_ctranslate2(marian: MarianMTModel, tokenizer, threads: int) -> Callable[[list[str]], list[str]]:
    import ctranslate2
    from ctranslate2.converters import transformers as loaders

    class Loader(loaders.BartLoader):
        """CTranslate2's Marian loader expects the padding token last and starts from it; ours starts from `<s>`."""

        architecture_name = "MarianMTModel"

        def get_model_spec(self, model):
            model.config.normalize_before = model.config.normalize_embedding = False
            return super().get_model_spec(model)

        def set_config(self, config, model, tokenizer):
            super().set_config(config, model, tokenizer)
            config.unk_token = tokenizer.pad_token  # a byte-level vocabulary has no unknown token

    loaders._MODEL_LOADERS["MarianConfig"] = Loader()
    with tempfile.TemporaryDirectory() as folder:
        marian.save_pretrained(f"{folder}/marian")
        tokenizer.save_pretrained(f"{folder}/marian")
        loaders.TransformersConverter(f"{folder}/marian").convert(f"{folder}/ctranslate2")
        translator = ctranslate2.Translator(
            f"{folder}/ctranslate2", inter_threads=1, intra_threads=threads, compute_type="float32"
        )
    options = {"beam_size": 5, "length_penalty": 1, "max_decoding_length": 63, "min_decoding_length": 0}

    def run(sources: list[str]) -> list[str]:
        tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(sources)["input_ids"]]
        results = translator.translate_batch(tokens, max_batch_size=64, **options)  # it sorts the sentences by length
        ids = [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
        return tokenizer.batch_decode(ids, skip_special_tokens=True)

    return run


def compare_translation(args: BenchmarkArguments) -> Case:
    sources = list(load_pairs(args.data)[2]["source"])
    model, tokenizer = load_translator(args)
    marian = to_marian(model)
    functions = {OURS: partial(translate, model, tokenizer), MARIAN: partial(translate_as_stock, marian, tokenizer)}
    functions[CTRANSLATE2] = make_ctranslate2(marian, tokenizer, args.threads)
    for function in functions.values():
        function(sources[:64])
    return Case({name: partial(function, sources) for name, function in functions.items()}, warmups=0, rounds=3)


def compare_translation_options(args: BenchmarkArguments) -> Case:
    """Two logits processors in beam search."""
    sources = list(load_pairs(args.data)[2]["source"])[:256]
    model, tokenizer = load_translator(args)
    options = {"min_new_tokens": 5, "no_repeat_ngram_size": 3}
    functions = {
        OURS: partial(translate, model, tokenizer, sources, **options),
        MARIAN: partial(translate_as_stock, to_marian(model), tokenizer, sources, **options),
    }
    return Case(functions, warmups=1, rounds=3)


def count_equal(ours: list[str], theirs: list[str]) -> str:
    equal = sum(a == b for a, b in zip(ours, theirs, strict=True))
    return f"{equal:,} of {len(ours):,} translations equal"


# start-up


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def import_seconds(modules: Iterable[str] = ()) -> float:
    """Seconds of `import hf_scratch` in a new process, after `import transformers` and `modules`."""
    imports = "\n".join(f"import {name}" for name in ("time", "transformers", *modules))
    code = "start = time.perf_counter()\nimport hf_scratch\nprint(time.perf_counter() - start)"
    return float(run_python(f"{imports}\n{code}"))


def import_time(args: BenchmarkArguments) -> Case:
    code = "import sys, hf_scratch\nprint(*[name for name in sys.modules if name.startswith('transformers.')])"
    return Case({OURS: partial(import_seconds, run_python(code).split())}, warmups=1, timed=False)


def load_time(args: BenchmarkArguments) -> Case:
    folder = str(Path(args.output_dir, "gpt_of_10_mb"))
    build("gpt", width=192, layers=2).save_pretrained(folder)
    return Case({OURS: partial(AutoModelForCausalLM.from_pretrained, folder)})
