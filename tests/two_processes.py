# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A training step of a stock trainer on 32 rows of unequal lengths; and what each of two processes computes.

python two_processes.py FOLDER

FOLDER holds a saved model of each family. The results of the first process go into FOLDER/results.pt.
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
from conftest import AUTO, FAMILIES
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments
from transformers.distributed import DistributedConfig

SMOOTHINGS = (0.0, 0.1)


def make_rows(family: str) -> list[dict]:
    """32 rows, padded with -100 in the labels to very unequal lengths."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for i in range(32):
        length = 2 + (7 * i) % 11 if i < 16 else 12  # the second half has more to predict than the first
        target = torch.randint(3, 60, (12,), generator=generator)
        row = {"input_ids": target.clone(), "labels": target.clone()}
        row["labels"][length:] = -100
        row["attention_mask"] = (torch.arange(12) < length).long()
        if family == "transformer":
            row["input_ids"] = torch.randint(3, 60, (12,), generator=generator)
            # what DataCollatorForSeq2Seq(model=model) adds; label smoothing takes the labels away from the model
            row["decoder_input_ids"] = torch.cat([torch.ones(1, dtype=torch.long), target[:-1]])
        rows.append(row)
    return rows


class InOrder:
    """The rows as they stand, so that every split of the batch holds the same rows."""

    def _get_train_sampler(self, train_dataset=None):
        return torch.utils.data.SequentialSampler(self.train_dataset)


class OrderedTrainer(InOrder, Trainer):
    pass


class OrderedSeq2SeqTrainer(InOrder, Seq2SeqTrainer):
    pass


def one_step(family: str, batch_size: int, accumulation: int, label_smoothing: float) -> dict[str, torch.Tensor]:
    """The weights after one step of plain gradient descent at rate 1: the start minus the gradient."""
    arguments = Seq2SeqTrainingArguments if family == "transformer" else TrainingArguments
    trainer_class = OrderedSeq2SeqTrainer if family == "transformer" else OrderedTrainer
    with tempfile.TemporaryDirectory() as folder:
        args = arguments(
            output_dir=folder, per_device_train_batch_size=batch_size, gradient_accumulation_steps=accumulation,
            label_smoothing_factor=label_smoothing, max_steps=1, optim="sgd", learning_rate=1.0, max_grad_norm=0.0,
            lr_scheduler_type="constant", weight_decay=0.0, save_strategy="no", use_cpu=True, disable_tqdm=True,
            dataloader_pin_memory=False, ddp_find_unused_parameters=False,
        )  # fmt: skip
        trainer = trainer_class(model=FAMILIES[family](), args=args, train_dataset=make_rows(family))
        trainer.train()
    return {name: p.detach().clone() for name, p in trainer.accelerator.unwrap_model(trainer.model).named_parameters()}


def one_step_by_hand(family: str, smoothing: float) -> dict[str, torch.Tensor]:
    """The same from the gradient of the whole batch at once."""
    model, rows = FAMILIES[family]().train(), make_rows(family)
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    labels = batch.pop("labels")
    logits = model(**batch).logits
    if family == "gpt":
        logits, labels = logits[:, :-1], labels[:, 1:]
    log_p = logits.log_softmax(-1)
    kept = labels != -100
    nll = -log_p.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    (((1 - smoothing) * nll - smoothing * log_p.mean(-1))[kept].sum() / kept.sum()).backward()
    return {name: p.detach() - p.grad for name, p in model.named_parameters()}


def make_inputs(family: str) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 60, (2, 7), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids} if family == "gpt" else {"input_ids": ids, "decoder_input_ids": ids[:, :5]}


def compute(family: str, folder: str) -> dict:
    """Tensor parallel inference, one step of FSDP2 on half of the batch, and one of a stock trainer."""
    inputs, load = make_inputs(family), AUTO[family].from_pretrained
    model = load(folder, distributed_config=DistributedConfig(tp_size=2)).eval()
    stack = model.model if family == "gpt" else model.model.encoder
    results = {"rows": len(stack.layers[0].self_attn.q_proj.weight.to_local())}
    with torch.no_grad():
        results["logits"] = model(**inputs).logits
    results["tokens"] = model.generate(inputs["input_ids"], max_new_tokens=6, do_sample=False)

    model = load(folder, distributed_config=DistributedConfig(fsdp_size=2)).train()
    results["sharded"] = len(model.lm_head.weight.to_local())
    own = slice(dist.get_rank(), dist.get_rank() + 1)
    labels = inputs.get("decoder_input_ids", inputs["input_ids"])
    model(input_ids=inputs["input_ids"][own], labels=labels[own]).loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    results["weights"] = {name: p.full_tensor() for name, p in model.named_parameters()}
    return results | {smoothing: one_step(family, 16, 1, smoothing) for smoothing in SMOOTHINGS}


def run(rank: int, folder: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    results = {family: compute(family, f"{folder}/{family}") for family in FAMILIES}
    if rank == 0:
        torch.save(results, f"{folder}/results.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":  # a fork has imported everything already, as the processes of torchrun have not
    torch.multiprocessing.start_processes(run, [sys.argv[1]], nprocs=2, start_method="fork")
