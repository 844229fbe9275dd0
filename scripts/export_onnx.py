#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Export a model to ONNX graphs with a cache, which onnxruntime runs without torch or transformers.

python scripts/export_onnx.py --model model_cards/scratch-gpt-tinystories --output_dir OUT --quantization int8
python scripts/run_onnx.py OUT "Once upon a time"
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path

import hf_scratch_launcher  # noqa: F401  before torch, whose OpenMP it sets
import torch
from transformers import AutoConfig

from hf_scratch.errors import command, extra, preparation
from hf_scratch.loading import auto_class_of, find_model, load_checkpoint, load_tokenizer
from hf_scratch.training.checkpoints import check_output_dir
from hf_scratch.training.command_line import parse_arguments

ROWS, SOURCE, TARGET = 3, 9, 7  # the sizes that are traced: 1 would become a constant


@dataclass
class ExportArguments:
    """The options of export_onnx.py."""

    model: str = field(metadata={"help": "A model's folder or Hub id."})
    output_dir: str = field(metadata={"help": "A new folder."})
    quantization: str = field(
        default="float32", metadata={"help": "The dtype of the weight matrices.", "choices": ["float32", "int8"]}
    )


def export(model, output_dir: Path, quantization: str) -> None:
    """Write `prefill.onnx` and `decode.onnx`, and for an encoder-decoder `encoder/model.onnx`.

    `prefill` reads the first tokens and returns their keys and values. `decode` reads these and the next token.
    """
    from transformers import exporters

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # its warnings concern functions that no model here calls
    quantizer = None
    if quantization == "int8":
        quantizer = exporters.OnnxRuntimeQuantizer(exporters.OnnxRuntimeDynamicConfig())
    exporter, config = exporters.OnnxExporter(), exporters.OnnxConfig(dynamic=True, quantizer=quantizer)
    ids, read = torch.ones(ROWS, TARGET, dtype=torch.long), torch.ones(ROWS, SOURCE, dtype=torch.long)
    if model.config.is_encoder_decoder:
        source = {"input_ids": read, "attention_mask": torch.ones_like(read)}
        exporter.export_for_generation(model, {**source, "decoder_input_ids": ids}, config).save_pretrained(output_dir)
        exporter.export(model.get_encoder(), source, config).save_pretrained(output_dir / "encoder")
    else:
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        exported = exporter.export_for_generation(model, inputs, config, multi_token_decode=True)
        exported.save_pretrained(output_dir)


@command
def main():
    with preparation():
        (args,), _ = parse_arguments(ExportArguments)
        with extra("export"):
            import onnx  # noqa: F401  transformers' exporters need all three
            import onnxruntime  # noqa: F401
            import onnxscript  # noqa: F401
        check_output_dir(args.output_dir)
        config = AutoConfig.from_pretrained(find_model(args.model))
        model, tokenizer = (
            load_checkpoint(auto_class_of(config), args.model, dtype="float32"),
            load_tokenizer(args.model),
        )
    output_dir = Path(args.output_dir)
    export(model.eval(), output_dir, args.quantization)
    tokenizer.save_pretrained(output_dir)
    graphs = sorted(output_dir.rglob("*.onnx"))
    size = sum(path.stat().st_size for path in output_dir.rglob("*.onnx*")) / 1e6
    print(f"{', '.join(str(path.relative_to(output_dir)) for path in graphs)} ({size:.1f} MB) are in {output_dir}.")


if __name__ == "__main__":
    main()
