#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Draw what a model does with one sentence: attention by layer and head, the tree of beams, token probabilities.

python scripts/explain.py --model DIR --text "A dog runs through the snow." --output_dir runs/explained

Beside each picture lies a JSON file with its numbers. The explorer (`make explore`) shows the same in a browser.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hf_scratch.errors import command, preparation
from hf_scratch.explaining import compute_attention, load_model, predict_tokens, search_beams
from hf_scratch.reporting.drawings import draw_attention, draw_beam_tree, draw_predictions
from hf_scratch.reporting.plots import save_figure
from hf_scratch.training.parsing import parse_arguments
from hf_scratch.training.script_arguments import check_at_least

LONGEST = 100  # tokens: more do not fit into one picture


@dataclass
class ExplainArguments:
    """The options of explain.py."""

    model: str = field(metadata={"help": "A folder or Hub id of one of our models."})
    text: str = field(metadata={"help": f"What the model reads, at most {LONGEST} tokens."})
    output_dir: str = field(default="runs/explained", metadata={"help": "Folder for the pictures and numbers."})
    num_beams: int | None = field(
        default=None, metadata={"help": "Beams of the tree. Default: the model's own; of a GPT 4."}
    )
    max_new_tokens: int | None = field(
        default=None,
        metadata={"help": "Longest translation or continuation in the tree. Default: the model's own; of a GPT 12."},
    )

    def __post_init__(self):
        check_at_least(self, 1, "num_beams", "max_new_tokens")


@command
@preparation()
def main():
    (args,), _ = parse_arguments(ExplainArguments)
    loaded = load_model(args.model)
    ids = loaded.encode(args.text, LONGEST)
    num_beams, max_new_tokens = args.num_beams, args.max_new_tokens
    if not loaded.is_translator:
        num_beams, max_new_tokens = num_beams or 4, max_new_tokens or 12
    tree = search_beams(loaded, ids, num_beams, max_new_tokens)
    target_ids = tree.sequences[0][None] if loaded.is_translator else None
    target_inputs = None if target_ids is None else target_ids[:, :-1]  # nothing reads the last token
    predictions = predict_tokens(loaded, ids, target_ids)
    attention = compute_attention(loaded, ids, target_inputs)

    shown = "the translation" if loaded.is_translator else "the text"
    figures = {
        "beams": draw_beam_tree(tree, f"tree of beams: {args.text}"),
        "probabilities": draw_predictions(predictions, f"probabilities of {shown}: {args.text}"),
    }
    for kind, weights in attention.items():
        for layer in range(len(weights)):
            name = f"{kind.replace(' ', '_').replace('-', '_')}_layer{layer}"
            figures[name] = draw_attention(loaded, kind, weights, layer, args.text, ids, target_inputs)
    tokens = {"input": loaded.read(ids[0], from_source=True)}
    if target_inputs is not None:
        tokens["decoder input"] = loaded.read(target_inputs[0])
    numbers = {
        "beams": {**asdict(tree), "sequences": [sequence.tolist() for sequence in tree.sequences]},
        "probabilities": [asdict(each) for each in predictions],
        "attention": {"tokens": tokens, **{kind: weights.tolist() for kind, weights in attention.items()}},
    }

    output_dir = Path(args.output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        print(save_figure(figure, str(output_dir), f"{name}.png"))
    for name, values in numbers.items():
        path = output_dir / f"{name}.json"
        path.write_text(json.dumps(values, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
