"""Espalier as a backend of torch.distributed: DistributedDataParallel and everything else that goes through it.

    import espalier.torch                                  # once, anywhere before
    torch.distributed.init_process_group("espalier")

A script that only names the backend runs without that line as `python3 -m espalier.torch SCRIPT ARGUMENTS…`, and from
torch 2.5 on without either, where the package is installed.

Tensors are on the CPU. Ranks meet through torch's store, each process group at a place of its own; ranks of several
hosts need ESPALIER_SECRET_FILE, as everywhere.
"""
import torch.distributed

from espalier.torch.group import ProcessGroup

# Further options of the C library, for one "transport=tcp;algorithms=all_reduce=ring"; read when a group is made.
options = ""


def _create(group, _):
    ranks = list(group.global_ranks_in_group) or list(range(group.group_size))  # torch leaves the world's out
    return ProcessGroup(group.store, group.group_rank, ranks, group.timeout, options)


def register():
    """Does nothing the second time: torch from 2.5 on calls this by itself."""
    if not hasattr(torch.distributed.Backend, "ESPALIER"):
        torch.distributed.Backend.register_backend("espalier", _create, extended_api=True)


register()
