#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Generate greedily from a folder of export_onnx.py, with onnxruntime, tokenizers and numpy alone.

python scripts/run_onnx.py OUT "Once upon a time"
"""

import argparse
import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer


def run(session, values: dict) -> dict:
    """Run a graph on those `values` that it takes, and return its outputs by name."""
    given = {node.name: values[node.name] for node in session.get_inputs()}
    return dict(zip([node.name for node in session.get_outputs()], session.run(None, given), strict=True))


def load(folder: Path, threads: int = 0) -> dict:
    """The graphs "prefill" and "decode", and the "encoder" of an encoder-decoder. 0 threads means all cores."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = threads
    files = {"encoder": folder / "encoder" / "model.onnx"} if (folder / "encoder").is_dir() else {}
    files |= {name: folder / f"{name}.onnx" for name in ("prefill", "decode")}
    return {name: InferenceSession(file, options) for name, file in files.items()}


def generate(graphs: dict, config: dict, ids: list[int], max_new_tokens: int) -> list[int]:
    """Return the most likely next tokens, without the end token."""
    source, tokens, last = np.array([ids]), [], config["max_position_embeddings"] - 1
    values = {"input_ids": source, "attention_mask": np.ones_like(source)}
    if is_translator := "encoder" in graphs:
        values["encoder_outputs.last_hidden_state"] = run(graphs["encoder"], values)["last_hidden_state"]
        values["decoder_input_ids"] = np.array([[config["decoder_start_token_id"]]])
    position = 0 if is_translator else len(ids) - 1
    values["position_ids"] = np.arange(position + 1)[None]
    outputs = run(graphs["prefill"], values)
    while (token := int(outputs["logits"][0, -1].argmax())) != config["eos_token_id"]:
        tokens.append(token)
        position += 1
        if len(tokens) == max_new_tokens or position > last:
            break
        # what a graph calls (output.)cache.NAME is the next step's input.cache.NAME
        values |= {f"input.{name.removeprefix('output.')}": tensor for name, tensor in outputs.items()}
        values |= {"input_ids": np.array([[token]]), "decoder_input_ids": np.array([[token]])}
        values["position_ids"] = np.array([[position]])
        if not is_translator:
            values["attention_mask"] = np.ones((1, position + 1), dtype=np.int64)
        outputs = run(graphs["decode"], values)
    return tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what export_onnx.py has written")
    parser.add_argument("text", help="what the model reads")
    args = parser.parse_args()
    folder = args.folder
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompt = tokenizer.encode(args.text).ids
    new = generate(load(folder), config, prompt, max_new_tokens=100)
    print(tokenizer.decode(new if (folder / "encoder").is_dir() else prompt + new))


if __name__ == "__main__":
    main()
