# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What convert/README.md says was corrected of an article: its own code does so, and the converted model does not."""

import article_reference as reference
import pytest
import torch
from test_convert_articles import GELU_SEQ2SEQ, PAPER_SEQ2SEQ, draw, execute, randomise
from torch import nn
from transformers import DataCollatorForSeq2Seq

from hf_scratch import ScratchTransformerForConditionalGeneration
from hf_scratch.convert import from_article, make_preset

ARGUMENTS = GELU_SEQ2SEQ[2]
WIDTH, HEADS = ARGUMENTS["embed_size"], ARGUMENTS["heads"]


class PositionalEncoding(nn.Module):  # gelu-seq2seq names it, and does not define it
    def __init__(self, width, max_len, dropout):
        super().__init__()
        self.register_buffer("encoding", reference.sinusoids(max_len, width))

    def forward(self, x):
        return x + self.encoding[: x.shape[1]]


def execute_gelu(weights_values: bool = False):
    correct = ("bvhd", "bkhd") if weights_values else ("", "")
    return execute("002", correct, PositionalEncoding=PositionalEncoding)


def make_gelu(weights_values: bool = True) -> nn.ModuleDict:
    article, (size, *others) = execute_gelu(weights_values), ARGUMENTS.values()
    stacks = {name: getattr(article, name.title())(size, *others, dropout=0.1) for name in ("encoder", "decoder")}
    return randomise(nn.ModuleDict(stacks))


@torch.no_grad()
def test_gelu_sums_all_values_whatever_the_scores_are():
    attention = randomise(execute_gelu().MultiHeadAttention(WIDTH, HEADS))
    x = torch.randn(2, 6, WIDTH)
    before = attention(x, x, x)
    torch.testing.assert_close(before, attention(x, x, x, reference.causal(6)[None, None]))  # a mask changes nothing
    torch.testing.assert_close(before, attention.fc(attention.values(x).sum(1, keepdim=True)).expand(2, 6, WIDTH))


@torch.no_grad()
def test_gelus_logits_do_not_depend_on_the_target():
    """Its sums ignore the query, and the residual is the encoder's state, so that nothing of the target is left."""
    theirs, src, padding = make_gelu(weights_values=False), draw(70, (2, 6), seed=1), torch.ones(2, 1, 1, 6)
    states = theirs["encoder"](src, padding)
    targets = [draw(70, (2, 6), seed=seed) for seed in (2, 3)]
    torch.testing.assert_close(*(theirs["decoder"](ids, states, padding, padding) for ids in targets))
    model = from_article("gelu-seq2seq", theirs.state_dict(), **ARGUMENTS)
    ours = [model(src, decoder_input_ids=ids).logits for ids in targets]
    assert (ours[0] - ours[1]).abs().max() > 0.1


@pytest.mark.parametrize("weights_values", [False, True])
def test_gelus_cross_attention_fails_where_lengths_differ(weights_values):
    block = randomise(execute_gelu(weights_values).DecoderBlock(WIDTH, HEADS))
    target, states = torch.randn(2, 6, WIDTH), torch.randn(2, 9, WIDTH)
    with pytest.raises(RuntimeError, match="is invalid for input of size"):
        block(target, states, states, None, None)
    model = from_article("gelu-seq2seq", make_gelu().state_dict(), **ARGUMENTS)
    assert model(draw(70, (2, 9), seed=1), decoder_input_ids=draw(70, (2, 6), seed=2)).logits.shape == (2, 6, 70)


@torch.no_grad()
def test_gelus_decoder_gives_each_attention_the_others_mask():
    """With its parameters `src_mask` and `target_mask` used as they are named, a token sees the tokens after it."""
    block = randomise(execute_gelu(weights_values=True).DecoderBlock(WIDTH, HEADS))
    states, x = torch.randn(2, 6, WIDTH), torch.randn(2, 6, WIDTH)
    padding, causal = torch.ones(2, 1, 1, 6), reference.causal(6)[None, None]

    def change_before_the_last(*masks) -> float:
        changed = torch.cat([x[:, :-1], 3 * torch.randn(2, 1, WIDTH)], dim=1)
        outputs = [block(target, states, states, *masks)[:, :-1] for target in (x, changed)]
        return (outputs[0] - outputs[1]).abs().max().item()

    assert change_before_the_last(padding, causal) > 1e-3
    assert change_before_the_last(causal, padding) == 0  # swapped by the caller
    model = from_article("gelu-seq2seq", make_gelu().state_dict(), **ARGUMENTS)
    src, trg = draw(70, (2, 6), seed=1), draw(70, (2, 6), seed=2)
    changed = torch.cat([trg[:, :-1], 3 + (trg[:, -1:] - 2) % 67], dim=1)
    torch.testing.assert_close(*(model(src, decoder_input_ids=ids).logits[:, :-1] for ids in (trg, changed)))


@torch.no_grad()
def test_gelus_decoder_adds_the_cross_attention_to_the_encoders_states():
    block = randomise(execute_gelu(True).DecoderBlock(WIDTH, HEADS))
    x, states, encoder = torch.randn(2, 6, WIDTH), torch.randn(2, 6, WIDTH), block.encoder_block
    out = block.layer_norm(x + block.attention(x, x, x))
    attended = encoder.layer_norm1(states + encoder.attention(states, out, states))
    expected = encoder.layer_norm2(attended + encoder.feed_forward(attended))
    torch.testing.assert_close(block(x, states, states, None, None), expected)


def test_gelus_dropout():
    """The given rate acts on the embeddings alone; after the decoder's self-attention it is torch's default, 0.5."""
    rates = {name: module.p for name, module in make_gelu().named_modules() if isinstance(module, nn.Dropout)}
    layers = range(ARGUMENTS["num_layers"])
    expected = {"encoder.dropout": 0.1, "decoder.dropout": 0.1}
    assert rates == expected | {f"decoder.decoder_layer.{i}.dropout": 0.5 for i in layers}
    assert make_preset("gelu-seq2seq", **ARGUMENTS).dropout == 0.1


def test_papers_positions_fail_on_embeddings():
    encoding = execute("003").PositionalEncoding(8)
    with pytest.raises(ValueError, match="too many values to unpack"):
        encoding(torch.randn(2, 4, 8))
    with pytest.raises(RuntimeError, match="must match the size"):  # and on ids, which have two dimensions
        encoding(torch.randint(9, (2, 4)))
    torch.testing.assert_close(encoding.encoding[:4], reference.sinusoids(4, 8))


def test_papers_cross_attention_fails_where_lengths_differ():
    attention = execute("003").MultiHeadAttention(8, 2)
    states = torch.randn(2, 9, 8)
    with pytest.raises(RuntimeError, match="is invalid for input of size"):
        attention(torch.randn(2, 6, 8), states, states)
    weights = reference.Weights()
    reference.paper_seq2seq(weights, *(draw(11, (2, n), seed=n) for n in (9, 6)), torch.ones(2, 9), **PAPER_SEQ2SEQ[0])
    model = from_article("paper-seq2seq", weights, **PAPER_SEQ2SEQ[0])
    logits = model(draw(11, (2, 9), seed=9), decoder_input_ids=draw(11, (2, 6), seed=6)).logits
    assert logits.shape == (2, 6, 11)


@pytest.mark.parametrize("source", ["annotated-seq2seq", "gelu-seq2seq", "paper-seq2seq"])
def test_a_preset_without_a_start_says_what_to_set(source, joint_tokenizer):
    arguments = {
        "annotated-seq2seq": {"vocab_enc": 300, "vocab_dec": 300, "maxlen": 12, "pad_id": 0, "layers": 1, "dm": 64,
                              "dk": 8, "dv": 8, "dff": 8},
        "gelu-seq2seq": {**GELU_SEQ2SEQ[0], "vocab_size": 300},
        "paper-seq2seq": {**PAPER_SEQ2SEQ[0], "vocab_size": 300},
    }[source]  # fmt: skip
    model = ScratchTransformerForConditionalGeneration(make_preset(source, **arguments))
    labels = torch.tensor([[5, 6, 2]])
    with pytest.raises(ValueError, match=r"`decoder_start_token_id` is None .* Set `model\.config\.decoder_start"):
        model.prepare_decoder_input_ids_from_labels(labels)
    with pytest.raises(ValueError, match="`decoder_start_token_id` is None"):
        DataCollatorForSeq2Seq(joint_tokenizer, model=model)([{"input_ids": [5, 2], "labels": [5, 6, 2]}])
    # as convert/README.md says
    ids = {"pad_token_id": 0, "decoder_start_token_id": 1, "eos_token_id": 2}
    for name, token_id in ids.items():
        setattr(model.config, name, token_id)
    model.generation_config.update(**ids, max_length=6)
    assert model.prepare_decoder_input_ids_from_labels(labels).tolist() == [[1, 5, 6]]
    assert model(input_ids=labels, labels=labels).loss.isfinite()
    assert model.generate(labels, do_sample=False)[0, 0] == 1
