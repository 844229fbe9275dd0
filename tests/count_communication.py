# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Count what a tiny GPT really communicates, for test_scaling.py: `torchrun count_communication.py METHOD HEAD OUT`.

METHOD is DDP, trained by our Trainer, or FSDP2, sharded by accelerate. HEAD is "tied" or "untied". Each of two updates
has two batches. The first process writes OUT, a JSON file.
"""

import json
import sys
import tempfile
from collections import Counter
from types import SimpleNamespace

import torch
import torch.distributed as dist
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from datasets import Dataset
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import TrainerCallback, TrainingArguments

from hf_scratch import ScratchGPTConfig, ScratchGPTForCausalLM
from hf_scratch.training.trainers import LanguageModelTrainer

UPDATES, BATCHES, LENGTH = 2, 2, 16
SIZES = {"vocab_size": 60, "hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": LENGTH}


class CountBuckets(TrainerCallback):
    """Replaces DDP's all-reduce by the same one, and counts the bytes of its buckets."""

    def __init__(self):
        self.trainer, self.counts = None, {"bytes": 0, "bucket": set()}

    def on_train_begin(self, args, state, control, **kwargs):
        def count(counts, bucket):
            counts["bytes"] += bucket.buffer().nbytes
            counts["bucket"].add(str(bucket.buffer().dtype))
            done = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True).get_future()
            return done.then(lambda future: future.value()[0])

        self.trainer.model_wrapped.register_comm_hook(self.counts, count)

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        self.counts["gradients"] = {str(parameter.grad.dtype) for parameter in model.parameters()}


def count_ddp(model: ScratchGPTForCausalLM) -> dict:
    """Train with `--bf16 true`. The bytes in DDP's buckets per update, and the dtypes of what a process keeps."""
    rows = [{"input_ids": list(range(i, i + LENGTH)), "labels": list(range(i, i + LENGTH))} for i in range(32)]
    counter = CountBuckets()
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            max_steps=UPDATES,
            gradient_accumulation_steps=BATCHES,
            per_device_train_batch_size=2,
            bf16=True,
            use_cpu=True,
            optim="adamw_torch_fused",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = LanguageModelTrainer(
            model=model, args=args, train_dataset=Dataset.from_list(rows), callbacks=[counter]
        )
        counter.trainer = trainer
        trainer.train()
    states = trainer.optimizer.state_dict()["state"].values()
    return {
        "bytes": counter.counts["bytes"] / UPDATES,
        "buckets are copies": not trainer.model_wrapped.gradient_as_bucket_view,
        "dtypes": {
            "weights": sorted({str(parameter.dtype) for parameter in model.parameters()}),
            "gradients": sorted(counter.counts["gradients"]),
            "buckets": sorted(counter.counts["bucket"]),
            "moments": sorted({str(state[name].dtype) for state in states for name in ("exp_avg", "exp_avg_sq")}),
        },
    }


class CountCollectives(TorchDispatchMode):
    """Counts the bytes of whole tensors that are gathered and reduce-scattered."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.c10d._allgather_base_.default:
            self.counts["gathered"] += args[0].nbytes
        elif func is torch.ops.c10d._reduce_scatter_base_.default:
            self.counts["reduced"] += args[1].nbytes
        return func(*args, **(kwargs or {}))


def count_fsdp(model: ScratchGPTForCausalLM) -> dict:
    """Shard as accelerate does. The bytes of the whole tensors that are gathered and reduce-scattered per update."""
    dist.init_process_group("gloo")
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        reshard_after_forward=True,
        cpu_ram_efficient_loading=False,
        mixed_precision_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    )
    state = SimpleNamespace(fsdp_plugin=plugin)
    model = fsdp2_prepare_model(SimpleNamespace(state=state, mixed_precision="bf16", is_main_process=False), model)
    ids = torch.arange(LENGTH)[None]
    with CountCollectives() as counter:
        for _ in range(UPDATES):
            for batch in range(BATCHES):
                model.set_requires_gradient_sync(batch == BATCHES - 1)
                model(input_ids=ids, labels=ids, skip_logits=True, use_cache=False).loss.backward()
            model.zero_grad()
    return {name: count / UPDATES for name, count in counter.counts.items()}


if __name__ == "__main__":
    method, is_tied, path = sys.argv[1:]
    torch.manual_seed(0)
    model = ScratchGPTForCausalLM(
        ScratchGPTConfig(**SIZES, num_hidden_layers=2, tie_word_embeddings=is_tied == "tied")
    )
    counts = count_ddp(model) if method == "DDP" else count_fsdp(model)
    if dist.get_rank() == 0:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(counts, file)
    dist.barrier()
    dist.destroy_process_group()
