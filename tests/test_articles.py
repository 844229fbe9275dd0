"""Each article that README lists is a configuration; sizes as in the article, or small where it has none."""

import pytest
import torch

from hf_scratch import (
    ScratchGPTConfig,
    ScratchGPTForCausalLM,
    ScratchTransformerConfig,
    ScratchTransformerForConditionalGeneration,
)


def count(model, pattern):
    return sum(p.numel() for name, p in model.named_parameters() if pattern in name)


def test_gpt_playground():
    model = ScratchGPTForCausalLM(
        ScratchGPTConfig(
            vocab_size=65, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=32,
            tie_word_embeddings=False,
        )
    )  # fmt: skip
    attention = 3 * (48 * 48 + 48) + (48 * 48 + 48)
    block = attention + 2 * 2 * 48 + (48 * 192 + 192) + (192 * 48 + 48)
    assert model.num_parameters() == 65 * 48 + 32 * 48 + 2 * block + 2 * 48 + 48 * 65


def test_annotated_seq2seq():
    model = ScratchTransformerForConditionalGeneration(
        ScratchTransformerConfig(
            vocab_size=90, decoder_vocab_size=80, share_encoder_decoder_embeddings=False, tie_word_embeddings=False,
            d_model=64, head_dim=6, v_head_dim=16, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_layers=2, decoder_layers=2, encoder_ffn_dim=100, decoder_ffn_dim=100, attention_bias=False,
            lm_head_bias=True, layer_norm_eps=1e-6, dropout=0.1, attention_dropout=0.1, activation_dropout=0.1,
        )
    )  # fmt: skip
    attention = 2 * 64 * 24 + 64 * 64 + (64 * 64 + 64)
    feed_forward = 64 * 100 + 100 + 100 * 64 + 64
    encoder, decoder = attention + feed_forward + 2 * 128, 2 * attention + feed_forward + 3 * 128
    assert model.num_parameters() == 90 * 64 + 80 * 64 + 2 * encoder + 2 * decoder + 64 * 80 + 80


@pytest.mark.parametrize(
    ("bias", "activation", "eps"),
    [(False, "gelu", 1e-5), (True, "relu", 1e-12)],
    ids=["gelu-seq2seq", "paper-seq2seq"],
)
def test_gelu_and_paper_seq2seq(bias, activation, eps):
    model = ScratchTransformerForConditionalGeneration(
        ScratchTransformerConfig(
            vocab_size=50, share_encoder_decoder_embeddings=False, tie_word_embeddings=False, d_model=32,
            encoder_attention_heads=4, decoder_attention_heads=4, encoder_layers=1, decoder_layers=1,
            encoder_ffn_dim=128, decoder_ffn_dim=128, activation_function=activation, attention_bias=bias,
            attention_output_bias=bias, lm_head_bias=True, scale_embedding=False, layer_norm_eps=eps,
        )
    ).eval()  # fmt: skip
    attention = 4 * (32 * 32 + 32 * bias)
    feed_forward = 32 * 128 + 128 + 128 * 32 + 32
    blocks = 3 * attention + 2 * feed_forward + 5 * 64
    assert model.num_parameters() == 2 * 50 * 32 + blocks + 32 * 50 + 50
    ids = torch.randint(3, 50, (2, 7))
    assert model(ids, decoder_input_ids=ids).logits.shape == (2, 7, 50)


@pytest.mark.parametrize("mask", [True, False])
def test_tinystories_notes(mask):
    model = ScratchGPTForCausalLM(
        ScratchGPTConfig(
            vocab_size=300, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, max_position_embeddings=128,
            attention_bias=False, lm_head_bias=True, embedding_layernorm=True, final_layernorm=False,
            tie_word_embeddings=False, is_causal=mask,
        )
    ).eval()  # fmt: skip
    block = 3 * 64 * 64 + (64 * 64 + 64) + 2 * 128 + (64 * 256 + 256) + (256 * 64 + 64)
    assert model.num_parameters() == 300 * 64 + 128 * 64 + 128 + 4 * block + 64 * 300 + 300
    ids = torch.randint(3, 300, (1, 9))
    changed = ids.clone()
    changed[:, -1] = (ids[:, -1] + 7) % 300
    same = torch.allclose(model(ids).logits[:, 0], model(changed).logits[:, 0])
    assert same == mask  # only a masked model is blind to what comes later
