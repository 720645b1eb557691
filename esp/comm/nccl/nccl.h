// Communicator for GPU memory through NCCL; every rank needs a GPU of its own. Calls that NCCL does not support go
// through the host communicator (comm/staged.h): host memory, calls that name an Espalier algorithm (sums in rank
// order), barriers, signals, and types unknown to NCCL.
//
// Calls run on a separate CUDA stream, after the work queued on the compute stream when the call was made; when the
// Work is done, so is the call. libnccl.so.2 is loaded on first use, so a program runs without it.
#pragma once

#include <memory>
#include <string>

#include "esp/comm/communicator.h"
#include "esp/device/gpu.h"

namespace esp::comm {

// "2.28.3", or empty if NCCL was not compiled in or cannot be loaded; `problem` gives the reason.
std::string nccl_version(std::string* problem = nullptr);

// Collective. Reason these ranks cannot use NCCL, equal on all ranks; empty: they can.
std::string why_not_nccl(Communicator& host, device::Device device);

// Collective. `host` is borrowed. `stream` is the compute stream that produces and consumes the buffers. CommError when
// NCCL fails.
std::unique_ptr<Communicator> make_nccl(Communicator& host, const device::Stream& stream,
                                        device::MemoryAccount& account);

}  // namespace esp::comm
