# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""How processes that torchrun restarts find each other."""

import ipaddress
import os
import socket
import time
import uuid
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.utils.distributed import get_free_port

SECONDS_TO_MEET = 600.0  # as long as torchrun waits for all machines


def meet_at_new_store() -> None:
    """Let the processes of a run that torchrun may restart meet at a store of their own.

    torchrun keeps one store for all restarts (pytorch issue 135712). It holds the addresses of killed processes, and
    a restarted process that reads one of them fails: it takes another restart, and may fail again. Here, the first
    process opens a new store, and answers each other process through torchrun's store. An answer is kept under a name
    that its reader has just made up, so that it cannot be an old one.

    It must be called before torch.distributed is initialised, and changes only the environment variables that torch
    then reads. Without torchrun's `--max-restarts`, it does nothing.
    """
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    uses_launchers_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    # each machine counts its own restarts, so that only their limit is the same for all processes
    may_restart = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)) > 0
    if world_size == 1 or not uses_launchers_store or not may_restart:
        return
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    timeout = timedelta(seconds=SECONDS_TO_MEET)
    store = PrefixStore("meeting", TCPStore(host, port, is_master=False, timeout=timeout))
    if rank == 0:
        answer = f"{uuid.uuid4().hex} {_own_address(host, port)} {get_free_port()}"
        _answer_all(store, answer, world_size)
    else:
        question = uuid.uuid4().hex
        store.set(f"question {rank}", question)
        answer = store.get(question).decode()
        store.set(f"{answer} {rank}", "read")
    _, os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = answer.split()
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"


def _answer_all(store: PrefixStore, answer: str, world_size: int) -> None:
    """Answer the questions, which may be those of killed processes, until each process has read its answer."""
    end = time.monotonic() + SECONDS_TO_MEET
    waiting = list(range(1, world_size))
    while waiting:
        for rank in waiting:
            if store.check([f"question {rank}"]):
                store.set(store.get(f"question {rank}").decode(), answer)
        time.sleep(0.05)
        waiting = [rank for rank in waiting if not store.check([f"{answer} {rank}"])]
        if waiting and time.monotonic() > end:
            raise TimeoutError(f"After {SECONDS_TO_MEET:.0f} seconds, processes {waiting} have not started.")


def _own_address(host: str, port: int) -> str:
    """Return this machine's address as the machine `host` sees it; `host` itself, if that is this machine."""
    with socket.create_connection((host, port)) as connection:
        own, other = connection.getsockname()[0], connection.getpeername()[0]
    return host if own == other or ipaddress.ip_address(own).is_loopback else own
