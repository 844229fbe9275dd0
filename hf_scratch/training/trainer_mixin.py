# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What both of our trainers add to transformers' trainers."""

import copy
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import datasets
import numpy as np
import torch
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler
from transformers import PreTrainedModel, ProgressCallback, Trainer, TrainingArguments
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import seed_worker

from ..data.columns import read_numbers
from ..data.sampling import EmptyPartCollator, RowBatchSampler, UpdateBatchSampler
from ..data.streaming import RowStream, StreamCollator
from ..errors import USERS_ERRORS, UserError, describe
from ..flops import count_flops
from ..loading import public_name, require_output_dir
from ..models.modeling_scratch_gpt import ScratchGPTForCausalLM
from ..models.modeling_scratch_transformer import ScratchTransformerForConditionalGeneration
from ..models.scratch_base import ScratchPreTrainedModel
from ..models.scratch_loss import Teacher
from .callbacks import LengthCallback, TokenCount, TrainingTime
from .fsdp import fsdp_plugin, prepare_fsdp, shard_shared_weights
from .muon import MuonAdamW, group_parameters
from .resuming import CheckpointKeeper

SETUP_ERRORS = (*USERS_ERRORS, TypeError, ArithmeticError)  # of options that only the start of a training reads


def data_seed(args: TrainingArguments) -> int:
    """The seed of the order of rows: `data_seed`, or else `seed`."""
    return args.data_seed if args.data_seed is not None else args.seed


class ScratchTrainerMixin(Trainer):
    """What both of our trainers add to transformers' trainers.

    What it overrides, and why:

    - `train`: a run that is killed or stopped and resumed reproduces an uninterrupted one (see `CheckpointKeeper`).
      Exceptions: `dataloader_persistent_workers`, `dispatch_batches` on several processes, and an `IterableDataset`
      of other classes than `RowStream` after its first pass.
    - `compute_loss`: a step computes no logits (`skip_logits`), smooths labels in the model, and adds R-Drop if
      `r_drop_alpha` is above 0. With `teacher_models`, part of the loss is the cross-entropy with their predictions.
      All three need a model of ours and its loss: others would ignore them, so they are refused.
    - `floating_point_ops`: includes the head, attention, and a pair's target.
    - `get_train_dataloader`: a step sees the same rows on any number of processes, also at the end of an epoch, where
      stock trainers fill up the processes' last batches with other rows. With
      `train_sampling_strategy="batch_rebalance"`, `dispatch_batches`, `split_batches` or an iterable dataset other
      than a `RowStream`, batches are stock.
    - `set_initial_training_values`: a training that is fitted into a time may begin more epochs than it planned.
    - `get_batch_samples`: counts tokens, keeps the position in a stream, and gives no batch to a resumed run that is
      over.
    - `get_eval_dataloader`, `evaluation_loop` and `prediction_step`: an evaluation reports the cross-entropy without
      label smoothing, over all rows, and computes no logits unless they are what it predicts. On several processes its
      loss is that of one. On a CPU it is computed in the weights' own dtype. The generation config stays as it is:
      Seq2SeqTrainer fills in every default.
    - `create_optimizer`: `muon`. Under FSDP2, weights that several modules share are sharded together.
    - `save_model`: under FSDP2, it writes a whole model. A checkpoint of shards has the config and the tokenizer too.

    The saved config keeps the model's `use_cache`, which stock trainers set to false.
    """

    model: Any

    def __init__(
        self,
        *args,
        r_drop_alpha: float = 0.0,
        teacher_models: Sequence[PreTrainedModel] = (),
        distillation_alpha: float = 0.5,
        muon: bool = False,
        **kwargs,
    ):
        if getattr(kwargs.get("args", args[1] if len(args) > 1 else None), "enable_jit_checkpoint", False):
            raise ValueError(
                "`enable_jit_checkpoint` leaves a checkpoint without a manifest, from which nothing is resumed. Leave "
                "it out, and add a StopCallback, which saves a whole one on SIGTERM."
            )
        model = kwargs.get("model", args[0] if args else None)
        use_cache = getattr(getattr(model, "config", None), "use_cache", None)
        super().__init__(*args, **kwargs)
        if use_cache is not None:
            self.model.config.use_cache = use_cache
        # of `torch_compile`: each kind of layer once, whatever their number, and the loss without logits as it is
        state: Any = self.accelerator.state
        state.dynamo_plugin.use_regional_compilation = True
        prepare_fsdp(self.accelerator)
        self.r_drop_alpha, self.muon = r_drop_alpha, muon
        self.distillation_alpha = distillation_alpha if teacher_models else 0.0
        self.teacher_models = [teacher.to(self.args.device).eval().requires_grad_(False) for teacher in teacher_models]
        self.label_smoother = None
        wanted = {
            "label_smoothing_factor": self.args.label_smoothing_factor,
            "r_drop_alpha": r_drop_alpha,
            "teacher_models": self.distillation_alpha,
        }
        given, own = [name for name, value in wanted.items() if value], self.compute_loss_func is not None
        if given and (own or not (hasattr(self.model, "take_loss_kwargs") and hasattr(self.model, "lm_head"))):
            name = type(self.model).__name__
            why = "`compute_loss_func` ignores it" if own else f"{name} is no language model of hf_scratch"
            raise ValueError(f"`{given[0]}` is set, but {why}: leave it out.")
        self.stream = self.train_dataset if isinstance(self.train_dataset, RowStream) else None
        if self.stream is not None:
            place = self.args.process_index, self.args.world_size
            self.stream.assign_shard(*place, data_seed(self.args), self.args.dataloader_num_workers)
            self.add_callback(self.stream)
        self.checkpoints = CheckpointKeeper(self, self.stream)
        self.token_count = TokenCount()
        self.callback_handler.callbacks.insert(2, self.token_count)  # before those that print or send an entry
        self.add_callback(TrainingTime())

    def train(self, resume_from_checkpoint=None, *args, **kwargs):
        """As stock, with the checks of `CheckpointKeeper.begin`.

        Raises:
            UserError: see there; or an option does not let the training begin.
        """
        with self.checkpoints.begin(resume_from_checkpoint) as checkpoint:
            model: Any = self.model  # None in a search
            ignore_data_skip, unsaved = self.args.ignore_data_skip, getattr(model, "_keys_to_ignore_on_save", None)
            self.args.ignore_data_skip |= self.stream is not None  # which begins at its position
            if tied := getattr(model, "all_tied_weights_keys", None):  # files hold them once: no warning of that
                model._keys_to_ignore_on_save = {*(unsaved or ()), *tied}
            try:
                return super().train(checkpoint, *args, **kwargs)
            except SETUP_ERRORS as error:
                if self.checkpoints.first_step is not None:
                    raise
                raise UserError(f"The training cannot begin: {describe(error)}") from error
            finally:
                self.args.ignore_data_skip = ignore_data_skip
                if tied:
                    model._keys_to_ignore_on_save = unsaved  # the user may untie them

    def own_arguments(self) -> dict[str, float | str | None]:
        """Return what else decides a step than the arguments of stock trainers. Manifests keep it."""
        collator = getattr(self.data_collator, "__dict__", {}).items()
        teachers = [public_name(teacher.name_or_path) for teacher in self.teacher_models]
        return {
            "r_drop_alpha": self.r_drop_alpha,
            "distillation_alpha": self.distillation_alpha,
            "muon": self.muon,
            "teacher_models": " ".join(teachers) or None,
            "attn_implementation": getattr(self.model.config, "_attn_implementation", None),
            # transformers' collators have a `seed` too
            **{f"collator.{k}": v for k, v in collator if isinstance(v, bool | int | float | str | None)},
        }

    # ---- the loss ----

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        inputs = {**inputs, "use_cache": False}  # with a cache, packed texts would see each other
        if torch.is_tensor(num_items_in_batch):
            num_items_in_batch = num_items_in_batch.long()  # FSDP2 would round a float to bfloat16
        if model.training:
            teachers = self._ask_teachers(inputs) if self.distillation_alpha else []
            if self.r_drop_alpha:
                teachers = [Teacher(torch.cat([states, states]), head) for states, head in teachers]
                inputs = {name: torch.cat([x, x]) if torch.is_tensor(x) else x for name, x in inputs.items()}
                num_items_in_batch = None if num_items_in_batch is None else 2 * num_items_in_batch
            inputs |= {"skip_logits": True, "label_smoothing": self.args.label_smoothing_factor}
            inputs["r_drop_alpha"] = self.r_drop_alpha
            inputs |= {"teachers": teachers, "distillation_alpha": self.distillation_alpha}
        elif self.accelerator.num_processes > 1:
            num_items_in_batch = None  # each batch counts by its own mean, as on one process
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Count the operations of a step, for the MFU."""
        is_ours = isinstance(self.model, ScratchPreTrainedModel) and hasattr(self.model, "lm_head")
        if not (is_ours and {"input_ids", "labels"} <= inputs.keys()):
            return super().floating_point_ops(inputs)
        return count_flops(self.model, inputs) * (2 if self.r_drop_alpha else 1)

    @torch.no_grad()
    def _ask_teachers(self, inputs: dict[str, Any]) -> list[Teacher]:
        """Return what the teachers predict for a batch. The heads of our own models are still to be applied."""
        inputs = {name: x for name, x in inputs.items() if name not in ("labels", "shift_labels")}
        teachers = []
        with self.accelerator.autocast():
            for teacher in self.teacher_models:
                if type(teacher) in (ScratchGPTForCausalLM, ScratchTransformerForConditionalGeneration):
                    states = teacher.base_model(**inputs, return_dict=True).last_hidden_state
                    teachers.append(Teacher(states, teacher.get_output_embeddings()))
                else:  # whose logits may be scaled, capped or shifted behind the head
                    teachers.append(Teacher(teacher(**inputs, return_dict=True).logits, torch.nn.Identity()))
        return teachers

    # ---- the training rows ----

    def make_batch_sampler(self) -> UpdateBatchSampler | None:
        """Make the sampler of the training set, or None where Trainer's own is used.

        Raises:
            ValueError: `dataloader_drop_last` leaves no row.
        """
        args, config = self.args, self.accelerator.dataloader_config
        rows: Any = self.train_dataset
        is_stock = config.dispatch_batches or config.split_batches or not hasattr(rows, "__len__")
        is_stock |= isinstance(rows, IterableDataset)  # which may have a length
        is_stock |= type(self)._get_train_sampler is not Trainer._get_train_sampler  # a user's own order
        is_split = self.get_tp_size() * self.get_cp_size() * self.get_sp_size() > 1  # processes share rows
        if is_stock or is_split or args.train_sampling_strategy == "batch_rebalance":
            return None
        parts = args.gradient_accumulation_steps * args.world_size
        rows_per_step = self._train_batch_size * parts
        if args.train_sampling_strategy == "group_by_length":  # Trainer's groups depend on the number of processes
            order: Any = LengthGroupedSampler(rows_per_step, lengths=self.row_lengths().tolist())
        else:
            order = (SequentialSampler if args.train_sampling_strategy == "sequential" else RandomSampler)(rows)
        sampler = RowBatchSampler(order, rows_per_step, parts, args.dataloader_drop_last, data_seed(args))
        if not len(sampler):
            raise ValueError(
                f"There is nothing to train: a step has {rows_per_step:,} rows, but there are {len(rows):,}, and "
                "`dataloader_drop_last` leaves them out."
            )
        return sampler

    def row_lengths(self) -> np.ndarray:
        """Return the training rows' lengths: their column "length", or else the tokens of `input_ids`."""
        rows: Any = self.train_dataset
        column = self.args.length_column_name
        if not isinstance(rows, datasets.Dataset):
            return np.array([len(row["input_ids"]) for row in rows])
        if column in rows.column_names:
            return read_numbers(rows, column)
        return np.array([len(ids) for ids in rows["input_ids"]])

    def get_train_dataloader(self) -> DataLoader:
        """As stock, with the batches of `make_batch_sampler`, or this process's part of a stream."""
        args, rows = self.args, self.train_dataset
        collator: Any = copy.copy(self.data_collator)  # an evaluation's has no epoch
        options: dict[str, Any] = {}
        if self.stream is not None:
            # a generator of its own: it would draw a global random number, which a resumed run has drawn before
            size = 1 if self.stream.max_tokens is not None else self._train_batch_size
            options |= {"batch_size": size, "generator": torch.Generator()}
        else:
            sampler = self.make_batch_sampler()
            if sampler is None:
                return super().get_train_dataloader()
            sampler.collator = collator
            sampler.process_index, sampler.num_processes = args.process_index, args.world_size
            options["batch_sampler"] = sampler
        collator = self._get_collator_with_removed_columns(collator, description="training")
        dataset: Any = rows  # torch reads a `datasets.Dataset` as its own
        dataloader = DataLoader(
            dataset,
            collate_fn=StreamCollator(collator) if self.stream is not None else EmptyPartCollator(collator, rows),
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            multiprocessing_context=args.dataloader_multiprocessing_context,
            prefetch_factor=args.dataloader_prefetch_factor,
            in_order=args.dataloader_in_order,
            worker_init_fn=partial(seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index),
            **options,
        )
        # one process, as seen from here: accelerate would share the batches among the processes once more
        return prepare_data_loader(
            dataloader,
            self.accelerator.device,
            num_processes=1,
            process_index=0,
            put_on_device=True,
            dispatch_batches=False,
            non_blocking=self.accelerator.non_blocking,
        )

    def set_initial_training_values(self, *args, **kwargs):
        epochs, *others = super().set_initial_training_values(*args, **kwargs)
        changing = self.checkpoints.callbacks(LengthCallback)
        for callback in changing:
            callback.progress = self.checkpoints.callbacks(ProgressCallback)
        return sys.maxsize if changing else epochs, *others  # `max_steps` ends it

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """As stock, counting tokens, and noting the position in a stream. A resumed run that is over gets no batch."""
        if self.checkpoints.is_over():
            self.control.should_training_stop = True
            return [], None
        try:
            batches, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        except UserError as error:  # to a worker's error, torch adds the worker's trace
            raise UserError(str(error).strip().rpartition(f"{UserError.__name__}: ")[2]) from error
        if self.stream is not None:
            self.stream.note(batches)
        self.token_count.add(batches, getattr(self.processing_class, "pad_token_id", None))
        return batches, num_items

    # ---- evaluation ----

    @contextmanager
    def _all_rows(self, in_order: bool) -> Generator[None]:
        """Make data loaders that leave out no row, and keep their order where it is asked for."""
        args = self.args
        before = args.dataloader_drop_last, args.train_sampling_strategy
        args.dataloader_drop_last = False
        if in_order:
            args.train_sampling_strategy = "random"  # which Trainer evaluates in order
        try:
            yield
        finally:
            args.dataloader_drop_last, args.train_sampling_strategy = before

    def get_eval_dataloader(self, *args, **kwargs) -> DataLoader:
        """As stock, but with all rows, and in their order where they are compared with references."""
        with self._all_rows(in_order=self.compute_metrics is not None):
            return super().get_eval_dataloader(*args, **kwargs)

    def get_test_dataloader(self, *args, **kwargs) -> DataLoader:
        """As stock, but with all rows, in their order: that of the predictions."""
        with self._all_rows(in_order=True):
            return super().get_test_dataloader(*args, **kwargs)

    def evaluation_loop(self, *args, **kwargs):
        generation_config = copy.deepcopy(getattr(self.model, "generation_config", None))  # an encoder has none
        self.gather_function = self.accelerator.gather_for_metrics  # Seq2SeqTrainer's keeps rows that fill up a batch
        forward = self.remove_autocast()
        try:
            return super().evaluation_loop(*args, **kwargs)
        finally:
            self.model.generation_config = generation_config
            vars(self.model).update(forward)

    def remove_autocast(self) -> dict[str, Any]:
        """On a CPU, remove what accelerate has put around `forward`, and return it. Our decoder does not run below it.

        A user's own `forward` stays, and so does what accelerate has put around that.
        """
        before = vars(self.model).get("_original_forward")
        is_ours = getattr(before, "__func__", None) is type(self.model).forward
        return {"forward": vars(self.model).pop("forward")} if is_ours and self.args.device.type == "cpu" else {}

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None, **generate_kwargs):
        inputs = self._hide_repeated_rows(inputs)
        if prediction_loss_only:
            inputs = {**inputs, "skip_logits": True}
        elif getattr(self.args, "predict_with_generate", False):
            model = partial(model, skip_logits=True)  # Seq2SeqTrainer calls it for the loss alone
        step = super().prediction_step
        return step(model, inputs, prediction_loss_only, ignore_keys, **generate_kwargs)  # ty: ignore[invalid-argument-type]

    def _hide_repeated_rows(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Hide the labels of the rows with which accelerate fills up the last batches of several processes.

        Their predictions are dropped when they are gathered, but not their share of a batch's loss. The loss of a
        batch that consists of them alone is dropped, too.
        """
        state, index = self.accelerator.gradient_state, self.accelerator.process_index
        if self.accelerator.num_processes == 1 or not state.end_of_dataloader or state.remainder <= 0:
            return inputs
        labels = {name: inputs[name] for name in ("labels", "shift_labels") if inputs.get(name) is not None}
        for name, tensor in labels.items():
            first = state.remainder - index * len(tensor)  # the first row that is repeated
            if first > 0:
                is_repeated = torch.arange(len(tensor), device=tensor.device) >= first
                labels[name] = tensor.masked_fill(is_repeated[:, None], -100)
        return {**inputs, **labels}

    # ---- the optimizer, and FSDP2 ----

    def create_optimizer(self, *args, **kwargs) -> torch.optim.Optimizer:
        """As stock, or with `muon` a `MuonAdamW`. Under FSDP2, it shards shared weights first."""
        shard_shared_weights(self.model, self.accelerator)
        if self.muon:
            if not self.args.optim.startswith("adamw_torch"):
                raise ValueError("`muon` goes with AdamW. Leave out `optim`, or set `muon` to false.")
            _, options = self.get_optimizer_cls_and_kwargs(self.args, self.model)
            names = self.get_decay_parameter_names(self.model)
            options["params"] = group_parameters(self.model, names, self.args.weight_decay)
            options["dtype"] = torch.bfloat16 if self.args.bf16 else torch.float32
            self.optimizer_cls_and_kwargs = MuonAdamW, options
        return super().create_optimizer(*args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As stock, and under FSDP2 the whole model, also where checkpoints have shards. All processes must call this.

        Trainer calls it for a checkpoint's folder too. Where its weights are in shards, they are not saved here.
        """
        if _internal_call and output_dir is not None:
            self.checkpoints.folder = os.path.dirname(output_dir)
        plugin = fsdp_plugin(self.accelerator)
        if plugin is None:
            super().save_model(output_dir, _internal_call)
            return
        is_in_shards = _internal_call and "SHARDED" in str(plugin.state_dict_type)
        weights = {} if is_in_shards else self.accelerator.get_state_dict(self.model)
        tied = getattr(self.model, "all_tied_weights_keys", {})
        if self.args.should_save:
            folder = output_dir or require_output_dir(self.args)
            self.model.save_pretrained(folder, state_dict={name: x for name, x in weights.items() if name not in tied})
            if self.processing_class is not None:
                self.processing_class.save_pretrained(folder)
            torch.save(self.args, os.path.join(folder, TRAINING_ARGS_NAME))
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)
