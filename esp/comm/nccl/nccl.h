// A communicator for memory of GPUs through NCCL, where every rank has a GPU of its own. What NCCL does not do goes
// over the host's communicator as comm/staged.h has it: calls on host memory, those that name an algorithm of ours
// (sums in rank order), barriers and signals, and types it does not know.
//
// Calls run on a queue of their own, after what the compute stream had been given when the call was made; when the Work
// is done, so is the call. NCCL is loaded when first asked for (libnccl.so.2), so a program runs without it.
#pragma once

#include <memory>
#include <string>

#include "esp/comm/communicator.h"
#include "esp/device/gpu.h"

namespace esp::comm {

// "2.28.3", or empty: it was not compiled or is not there, which `problem` then says.
std::string nccl_version(std::string* problem = nullptr);

// Collective. Why these ranks cannot talk through NCCL, the same words on each; empty: they can.
std::string why_not_nccl(Communicator& host, device::Device device);

// Collective. `host` is lent; the stream is the one that makes and uses what is sent. CommError when NCCL fails.
std::unique_ptr<Communicator> make_nccl(Communicator& host, const device::Stream& stream,
                                        device::MemoryAccount& account);

}  // namespace esp::comm
