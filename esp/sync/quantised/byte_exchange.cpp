#include "esp/sync/quantised/byte_exchange.h"

namespace esp::sync {
namespace {

size_t size_of_group(const comm::Communicator* members) {
  return members ? static_cast<size_t>(members->size()) : 1;
}

}  // namespace

ByteExchange::ByteExchange(comm::Communicator* members)
    : members_(members),
      sends_(size_of_group(members)),
      sends_at_(sends_.size()),
      receives_(sends_.size()),
      receives_at_(sends_.size()) {}

ByteExchange::~ByteExchange() {
  try {
    work_.wait(Deadline::after(std::chrono::hours(24)));
  } catch (...) {
    // A destructor must not throw; the next wait on the communicator reports the error.
  }
}

void ByteExchange::set_send(int peer, size_t at, size_t bytes) {
  sends_at_[static_cast<size_t>(peer)] = at;
  sends_[static_cast<size_t>(peer)] = bytes;
}

void ByteExchange::set_receive(int peer, size_t at, size_t bytes) {
  receives_at_[static_cast<size_t>(peer)] = at;
  receives_[static_cast<size_t>(peer)] = bytes;
}

void ByteExchange::start(const void* in, void* out) {
  if (is_single_rank()) return;
  comm::Call call;
  call.op = comm::Op::all_to_all_v;
  call.in = in;
  call.out = out;
  call.dtype = DType::u8;
  call.send_counts = sends_;
  call.send_offsets = sends_at_;
  call.recv_counts = receives_;
  call.recv_offsets = receives_at_;
  work_ = members_->start(call);
}

void ByteExchange::wait(Deadline deadline) {
  const auto begun = Clock::now();
  work_.wait(deadline);
  waited_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - begun).count();
  work_ = {};
}

}  // namespace esp::sync
