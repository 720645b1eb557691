// Communicator for GPU memory over a host communicator: inputs are copied to pinned buffers, the host communicator's
// call runs there, outputs are copied back. For several ranks on one GPU, and wherever NCCL cannot be used. Calls on
// host memory pass through.
//
// Copies run on a separate stream, after the work queued on the compute stream when the call was made. When the Work is
// done, so are the copies. Started calls overlap with the compute stream. One thread calls (communicator.h); a worker
// thread runs started calls.
#pragma once

#include <memory>

#include "esp/comm/communicator.h"
#include "esp/device/gpu.h"

namespace esp::comm {

// `host` is borrowed, or owned in the second form. `stream` is the compute stream that produces and consumes the
// buffers.
std::unique_ptr<Communicator> make_staged(Communicator& host, const device::Stream& stream,
                                          device::MemoryAccount& account);
std::unique_ptr<Communicator> make_staged(std::unique_ptr<Communicator> host, const device::Stream& stream,
                                          device::MemoryAccount& account);

}  // namespace esp::comm
