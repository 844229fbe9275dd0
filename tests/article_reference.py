# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The five articles' models as functions of their state dicts, written from the equations in plain tensor algebra.

`Weights` draws a tensor when a name is first asked for, so that a forward pass also writes the state dict, with the
names and shapes of the article.
"""

import torch
from torch.nn.functional import gelu, relu


class Weights(dict):
    """A state dict that fills itself: `w("head.weight", 60, 32)` is the tensor of that name and shape."""

    def __init__(self, seed: int = 0):
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, name: str, *shape: int) -> torch.Tensor:
        if name not in self:
            spread = shape[-1] ** -0.5 if len(shape) > 1 else 0.2
            self[name] = torch.randn(shape, generator=self.generator) * spread + name.endswith(("gamma", "ln.weight"))
        return self[name]

    def buffer(self, name: str, tensor: torch.Tensor) -> None:
        self[name] = tensor

    def linear(self, x: torch.Tensor, name: str, rows: int, bias: bool = True) -> torch.Tensor:
        y = x @ self(f"{name}.weight", rows, x.shape[-1]).T
        return y + self(f"{name}.bias", rows) if bias else y

    def norm(self, x, name, eps=1e-5, gain="weight", shift="bias", unbiased=False) -> torch.Tensor:
        width = x.shape[-1]
        centred = x - x.mean(-1, keepdim=True)
        variance = (centred**2).sum(-1, keepdim=True) / (width - unbiased)
        return centred / (variance + eps) ** 0.5 * self(f"{name}.{gain}", width) + self(f"{name}.{shift}", width)


def causal(length: int) -> torch.Tensor:
    return torch.ones(length, length).tril().bool()


def attend(q, k, v, heads: int, scale: float, mask: torch.Tensor | None) -> torch.Tensor:
    """Softmax(q k^T / scale) v in each head; (batch, length, heads * width) in and out, mask (batch or 1, q, k)."""

    def split(x):
        return x.view(*x.shape[:2], heads, -1).transpose(1, 2)

    scores = split(q) @ split(k).transpose(2, 3) / scale
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None], -1e9)
    return (scores.softmax(-1) @ split(v)).transpose(1, 2).flatten(2)


def sinusoids(length: int, width: int) -> torch.Tensor:
    pair = torch.arange(width) // 2 * 2
    angle = torch.arange(length)[:, None] / 10000.0 ** (pair / width)
    return torch.where(torch.arange(width) % 2 == 0, angle.sin(), angle.cos())


def gpt_playground(w, ids, n_layer, n_head, embedding_dim, vocab_size, block_size):
    length, d = ids.shape[1], embedding_dim
    x = w("transformer.emb.weight", vocab_size, d)[ids] + w("transformer.pos.weight", block_size, d)[:length]
    for i in range(n_layer):
        name = f"transformer.attention.{i}"
        w.buffer(f"{name}.attn.bias", causal(block_size)[None, None].float())
        q, k, v = w.linear(w.norm(x, f"{name}.ln1"), f"{name}.attn.attention", 3 * d).split(d, -1)
        context = attend(q, k, v, n_head, (d // n_head) ** 0.5, causal(length)[None])
        x = x + w.linear(context, f"{name}.attn.fc", d)
        x = x + w.linear(gelu(w.linear(w.norm(x, f"{name}.ln2"), f"{name}.fc1", 4 * d)), f"{name}.fc2", d)
    return w.linear(w.norm(x, "transformer.ln"), "head", vocab_size, bias=False)


def tinystories_notes(
    w, ids, vocab_size, seq_length, embed_dim, num_heads, num_transformer_layers, mask=True, prefix="transformer."
):
    length, d, head = ids.shape[1], embed_dim, embed_dim // num_heads
    x = w(f"{prefix}embeddings.token_embd.weight", vocab_size, d)[ids]
    x = x + w(f"{prefix}embeddings.pos_embd.weight", seq_length, d)[:length]
    x = w.norm(x, f"{prefix}embeddings.layer_norm")
    for i in range(num_transformer_layers):
        name = f"{prefix}transformer_layers.{i}"
        y, heads = w.norm(x, f"{name}.layer_norm_1"), []
        for j in range(num_heads):
            each = f"{name}.mha.attention_heads.{j}"
            w.buffer(f"{each}.tril", causal(seq_length).float())
            q, k, v = (w.linear(y, f"{each}.{part}", head, bias=False) for part in ("query", "key", "value"))
            heads.append(attend(q, k, v, 1, head**0.5, causal(length)[None] if mask else None))
        x = x + w.linear(torch.cat(heads, -1), f"{name}.mha.linear_proj", d)
        y = gelu(w.linear(w.norm(x, f"{name}.layer_norm_2"), f"{name}.ffn.layer1", 4 * d))
        x = x + w.linear(y, f"{name}.ffn.layer2", d)
    return w.linear(x, "classifier", vocab_size) if prefix else x


def annotated_seq2seq(
    w, src, trg, vocab_enc, vocab_dec, maxlen, pad_id, dm, dk, dv, nhead, layers, dff, bias=False, eps=1e-6, scale=True
):
    def embed(stack, ids, size):
        w.buffer(f"{stack}.pos_encodings.pos_encodings", sinusoids(maxlen, dm)[None])
        x = w(f"{stack}.embeddings.embedding.weight", size, dm)[ids] * (dm**0.5 if scale else 1.0)
        return x + sinusoids(ids.shape[1], dm)

    def attention(name, x, states, mask):
        q, k = w.linear(x, f"{name}.wq", dk * nhead, bias), w.linear(states, f"{name}.wk", dk * nhead, bias)
        v = w.linear(states, f"{name}.wv", dv * nhead, bias)
        return w.linear(attend(q, k, v, nhead, dk**0.5, mask), f"{name}.wo", dm)

    def norm(x, name):
        return w.norm(x, name, eps, "gamma", "beta", unbiased=True)

    def feed_forward(x, name):
        return w.linear(relu(w.linear(x, f"{name}.w1", dff)), f"{name}.w2", dm)

    source_mask = (src != pad_id)[:, None]
    target_mask = (trg != pad_id)[:, None] & causal(trg.shape[1])
    states = embed("encoder", src, vocab_enc)
    for i in range(layers):
        name = f"encoder.stack.{i}"
        states = norm(states + attention(f"{name}.multihead", states, states, source_mask), f"{name}.norm1")
        states = norm(states + feed_forward(states, f"{name}.feedforward"), f"{name}.norm2")
    x = embed("decoder", trg, vocab_dec)
    for i in range(layers):
        name = f"decoder.stack.{i}"
        x = norm(x + attention(f"{name}.maskmultihead", x, x, target_mask), f"{name}.norm1")
        x = norm(x + attention(f"{name}.multihead", x, states, source_mask), f"{name}.norm2")
        x = norm(x + feed_forward(x, f"{name}.feedforward"), f"{name}.norm3")
    return w.linear(x, "linear", vocab_dec)


def gelu_seq2seq(
    w, src, trg, source_mask, vocab_size, embed_size, heads, num_layers, max_len, bias=False, corrected=True
):
    """(encoder's states, logits). `corrected=False` keeps the article's residual of the cross-attention."""
    d, (source, target) = embed_size, (vocab_size, vocab_size) if isinstance(vocab_size, int) else vocab_size

    def attention(name, key, query, mask):
        q, k = w.linear(query, f"{name}.queries", d, bias), w.linear(key, f"{name}.keys", d, bias)
        context = attend(q, k, w.linear(key, f"{name}.values", d, bias), heads, d**0.5, mask)
        return w.linear(context, f"{name}.fc", d, bias)

    def block(name, key, query, mask):
        residual = query if corrected else key
        x = w.norm(residual + attention(f"{name}.attention", key, query, mask), f"{name}.layer_norm1")
        y = w.linear(gelu(w.linear(x, f"{name}.feed_forward.0", 4 * d)), f"{name}.feed_forward.2", d)
        return w.norm(x + y, f"{name}.layer_norm2")

    mask = source_mask[:, None].bool()
    states = w("encoder.embed.weight", source, d)[src] + sinusoids(src.shape[1], d)
    for i in range(num_layers):
        states = block(f"encoder.encoder_layers.{i}", states, states, mask)
    x = w("decoder.embed.weight", target, d)[trg] + sinusoids(trg.shape[1], d)
    for i in range(num_layers):
        name = f"decoder.decoder_layer.{i}"
        x = w.norm(x + attention(f"{name}.attention", x, x, causal(trg.shape[1])[None]), f"{name}.layer_norm")
        x = block(f"{name}.encoder_block", states, x, mask)
    return states, w.linear(x, "decoder.fc", target)


def paper_seq2seq(w, src, trg, source_mask, vocab_size, d_model, n_head, hidden_dim, num_layers, max_len):
    d, (source, target) = d_model, (vocab_size, vocab_size) if isinstance(vocab_size, int) else vocab_size

    def attention(name, x, states, mask):
        q, k, v = (w.linear(y, f"{name}.{part}", d) for y, part in ((x, "w_q"), (states, "w_k"), (states, "w_v")))
        return w.linear(attend(q, k, v, n_head, (d // n_head) ** 0.5, mask), f"{name}.w_combination", d)

    def norm(x, name):
        return w.norm(x, name, 1e-12, "gamma", "beta")

    def feed_forward(x, name):
        return w.linear(relu(w.linear(x, f"{name}.fc1", hidden_dim)), f"{name}.fc2", d)

    mask = source_mask[:, None].bool()
    states = w("encoder.embedding.weight", source, d)[src] + sinusoids(src.shape[1], d)
    for i in range(num_layers):
        name = f"encoder.layers.{i}"
        states = norm(states + attention(f"{name}.attention", states, states, mask), f"{name}.norm1")
        states = norm(states + feed_forward(states, f"{name}.ffn"), f"{name}.norm2")
    x = w("decoder.embedding.weight", target, d)[trg] + sinusoids(trg.shape[1], d)
    for i in range(num_layers):
        name = f"decoder.layers.{i}"
        x = norm(x + attention(f"{name}.attention", x, x, causal(trg.shape[1])[None]), f"{name}.norm1")
        x = norm(x + attention(f"{name}.cross_attention", x, states, mask), f"{name}.norm2")
        x = norm(x + feed_forward(x, f"{name}.ffn"), f"{name}.norm3")
    return w.linear(x, "decoder.linear", target)
