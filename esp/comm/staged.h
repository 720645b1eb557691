// Communicator for GPU memory on top of a host communicator: inputs are copied to pinned buffers, the call runs on the
// host communicator, outputs are copied back. Used for several ranks on one GPU, and where NCCL cannot be used. Calls
// on host memory are passed to the host communicator.
//
// Copies run on a separate stream, after the work queued on the compute stream when the call was made. When the Work is
// done, the copies are done too. Started calls overlap with the compute stream. Only one thread may make calls (see
// communicator.h); a worker thread runs the started calls.
#pragma once

#include <memory>

#include "esp/comm/communicator.h"
#include "esp/device/gpu.h"

namespace esp::comm {

// The first form borrows `host`, the second owns it. `stream` is the compute stream that produces and consumes the
// buffers.
std::unique_ptr<Communicator> make_staged(Communicator& host, const device::Stream& stream,
                                          device::MemoryAccount& account);
std::unique_ptr<Communicator> make_staged(std::unique_ptr<Communicator> host, const device::Stream& stream,
                                          device::MemoryAccount& account);

}  // namespace esp::comm
