// Communicator for GPU memory through NCCL; requires one GPU per rank. Calls that NCCL does not support go through the
// host communicator (comm/staged.h): calls on host memory, calls that name an Espalier algorithm (sums in rank order),
// barriers, signals, and element types unknown to NCCL.
//
// Calls run on a separate CUDA stream, after the work queued on the compute stream when the call was made. When the
// Work is done, the call is done. libnccl.so.2 is loaded on first use, so a program also runs without the library.
#pragma once

#include <memory>
#include <string>

#include "esp/comm/communicator.h"
#include "esp/device/gpu.h"

namespace esp::comm {

// Returns "2.28.3", or an empty string if NCCL was not compiled in or cannot be loaded; `problem` receives the reason.
std::string nccl_version(std::string* problem = nullptr);

// Collective. Returns why these ranks cannot use NCCL, or an empty string if they can. All ranks get the same text.
std::string nccl_unsupported_reason(Communicator& host, device::Device device);

// Collective. `host` is borrowed. `stream` is the compute stream that produces and consumes the buffers. Throws
// CommError when NCCL fails.
std::unique_ptr<Communicator> make_nccl(Communicator& host, const device::Stream& stream,
                                        device::MemoryAccount& account);

}  // namespace esp::comm
