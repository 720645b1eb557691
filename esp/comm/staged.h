// A communicator for memory of a GPU over one for memory of the host: what a call reads is copied down to pinned
// buffers, the other one's call runs there, and what it wrote is copied up. For several ranks on one GPU, and wherever
// there is no better way between GPUs; calls on host memory pass through.
//
// Copies run on a queue of their own, after what the compute stream had been given when the call was made; when the
// Work is done, so is the copy up. Started calls overlap with the compute stream's work. As communicator.h says, one
// thread calls; a worker of its own does what was started.
#pragma once

#include <memory>

#include "esp/comm/communicator.h"
#include "esp/device/gpu.h"

namespace esp::comm {

// `host` is lent, or owned in the second form. The stream is the one that makes and uses what is sent.
std::unique_ptr<Communicator> make_staged(Communicator& host, const device::Stream& stream,
                                          device::MemoryAccount& account);
std::unique_ptr<Communicator> make_staged(std::unique_ptr<Communicator> host, const device::Stream& stream,
                                          device::MemoryAccount& account);

}  // namespace esp::comm
