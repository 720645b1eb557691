"""Espalier as a backend of torch.distributed, for DistributedDataParallel and all other users of process groups.

    import espalier.torch                                  # once, before init_process_group
    torch.distributed.init_process_group("espalier")

A script that only names the backend runs without the import as `python3 -m espalier.torch SCRIPT ARGUMENTS…`. If the
package is installed and torch is 2.5 or newer, neither is needed.

Tensors are on the CPU. Ranks rendezvous through torch's store, each process group under separate keys. Ranks on several
hosts need ESPALIER_SECRET_FILE.
"""
import torch.distributed

from espalier.torch.group import ProcessGroup

# Further options of the C library, for example "transport=tcp;algorithms=all_reduce=ring". Read when a group is created.
options = ""


def _create(group, _):
    ranks = list(group.global_ranks_in_group) or list(range(group.group_size))  # torch leaves the list empty for the world
    return ProcessGroup(group.store, group.group_rank, ranks, group.timeout, options)


def register():
    """Registers the backend; idempotent. torch 2.5 and newer calls this itself."""
    if not hasattr(torch.distributed.Backend, "ESPALIER"):
        torch.distributed.Backend.register_backend("espalier", _create, extended_api=True)


register()
