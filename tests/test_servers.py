# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What vLLM's and SGLang's transformers backends ask of a GPT, as their documentation and source say.

Both build the base model with an attention function of their own. They call it with the tokens of all requests in one
row and no mask, and hand it what it needs as keyword arguments.
"""

from types import SimpleNamespace

import pytest
import torch
from conftest import make_gpt
from torch import nn
from transformers import AttentionInterface, AutoConfig, AutoModel

REQUESTS = [4, 1, 6]  # tokens of each


def attend_by_request(module, query, key, value, attention_mask, scaling, **kwargs):
    """A server's attention: it knows the requests, and finds its own state by the layer's number."""
    assert attention_mask is None
    assert kwargs["attention_instances"][module.layer_idx] == f"layer {module.layer_idx}"
    parts = zip(*(tensor.split(kwargs["forward_batch"].lengths, 2) for tensor in (query, key, value)), strict=True)
    contexts = [
        nn.functional.scaled_dot_product_attention(*part, scale=scaling, is_causal=module.is_causal) for part in parts
    ]
    return torch.cat(contexts, 2).transpose(1, 2), None


def test_a_servers_own_attention_computes_the_base_model(tmp_path):
    model = make_gpt()
    model.save_pretrained(tmp_path)
    AttentionInterface.register("server", attend_by_request)
    config = AutoConfig.from_pretrained(tmp_path)
    base = AutoModel.from_config(config, attn_implementation="server").eval()
    base.load_state_dict(model.model.state_dict())
    assert base.is_backend_compatible()
    requests = [torch.randint(3, 60, (1, length)) for length in REQUESTS]
    states = base(
        input_ids=torch.cat(requests, 1),
        position_ids=torch.cat([torch.arange(length) for length in REQUESTS])[None],
        use_cache=False,
        return_dict=False,
        attention_instances={i: f"layer {i}" for i in range(config.num_hidden_layers)},
        forward_batch=SimpleNamespace(lengths=REQUESTS),
    )[0]
    expected = torch.cat([model.model(ids).last_hidden_state for ids in requests], 1)
    torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-4)
    assert base.get_input_embeddings() is base.embed_tokens


def test_the_tensor_parallel_plan_divides_each_linear_layer():
    model = make_gpt().model
    plan = {name.replace("*", "0"): style for name, style in model.tp_plan.items()}
    layer = model.layers[0].named_modules(prefix="layers.0")
    for name in [name for name, module in layer if isinstance(module, nn.Linear)]:
        assert plan[name] == ("rowwise" if name.endswith(("o_proj", "fc2")) else "colwise")


def test_there_is_no_pipeline_parallel_plan():
    """A stage gets the states of the one before as `inputs_embeds`, to which a GPT would add its positions again."""
    assert not make_gpt().supports_pp_plan


def test_a_stage_without_the_token_embedding_is_refused():
    """vLLM splits the layers where there is no plan, and gives later stages hidden states as `inputs_embeds`."""
    base = make_gpt().model
    base.embed_tokens = nn.Identity()
    with pytest.raises(ValueError, match="stage"):
        base(inputs_embeds=torch.randn(1, 4, 32))
