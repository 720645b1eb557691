#include "esp/comm/staged.h"

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "esp/comm/arguments.h"
#include "esp/comm/worker.h"

namespace esp::comm {
namespace {

// A run of a GPU's memory and its place in the pinned buffer.
struct Stretch {
  std::byte* device;
  size_t at, bytes;
};

class Staged final : public Communicator {
 public:
  Staged(std::unique_ptr<Communicator> owned, Communicator& host, const device::Stream& stream,
         device::MemoryAccount& account)
      : owned_(std::move(owned)),
        host_(host),
        stream_(stream),
        account_(account),
        queue_(stream.device, &account, device::GpuQueue::Priority::high),
        source_(device::pinned_memory(stream.device)),
        pinned_(account, device::MemoryTier::host, *source_) {}

  ~Staged() override {
    settle();
    if (buffer_) pinned_.give(buffer_);
  }

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }

  void run(const Call& call) override {
    if (!on_device(call)) {
      settle();
      return host_.run(call);
    }
    start(call).wait(Deadline::after(kForever));
  }

  Work start(const Call& call) override { return start_group({&call, 1}); }

  // The caller's spans may go: the calls are kept whole.
  Work start_group(std::span<const Call> calls) override {
    auto job = std::make_shared<Job>(stream_.device);
    for (const Call& call : calls) job->add(call);
    job->ready.record(stream_);
    return worker_.post([this, job, alone = calls.size() == 1] { execute(*job, alone); });
  }

  std::unique_ptr<Communicator> split(int colour, int key) override {
    settle();
    auto part = host_.split(colour, key);
    return part ? make_staged(std::move(part), stream_, account_) : nullptr;
  }
  std::shared_ptr<void> allocate(size_t bytes) override { return host_.allocate(bytes); }
  std::unique_ptr<net::Transport> open_transport() override {
    settle();
    return host_.open_transport();
  }
  void abort(const std::string& why) override { host_.abort(why); }
  std::string explain(const Call& call) const override { return "staged through the host: " + host_.explain(call); }
  std::vector<CallStats> stats() const override {
    settle();
    return host_.stats();
  }

 private:
  static constexpr Duration kForever = std::chrono::hours(24);  // the host's calls have deadlines of their own

  struct Job {
    explicit Job(device::Device device) : ready(device) {}
    void add(const Call& call) {
      Call& own = calls.emplace_back(call);
      algorithms.emplace_back(call.algorithm);
      for (auto* counts : {&own.send_counts, &own.send_offsets, &own.recv_counts, &own.recv_offsets}) {
        spans.emplace_back(counts->begin(), counts->end());
        *counts = spans.back();
      }
      own.algorithm = algorithms.back();
    }
    std::vector<Call> calls;
    std::deque<std::string> algorithms;
    std::deque<std::vector<size_t>> spans;
    device::GpuEvent ready;  // what is sent has been made
  };

  static bool on_device(const Call& call) {
    return (call.in && !device::on_host(call.in)) || (call.out && !device::on_host(call.out));
  }

  // No call is in flight: the host communicator may be called from this thread.
  void settle() const {
    if (!worker_.idle()) worker_.post([] {}).wait(Deadline::after(kForever));
  }

  void execute(Job& job, bool alone) {
    const device::Stream copies = queue_.stream();
    std::vector<Stretch> down, up;
    std::vector<size_t> places(job.calls.size() * 2);
    size_t bytes = 0;
    for (size_t i = 0; i < job.calls.size(); ++i)
      if (on_device(job.calls[i])) lay_out(job.calls[i], bytes, &places[2 * i], down, up);
    if (bytes > 0) make_room(bytes);
    std::byte* const base = buffer_ ? buffer_->data : nullptr;
    for (size_t i = 0; i < job.calls.size(); ++i) {
      Call& call = job.calls[i];
      if (!on_device(call)) continue;
      if (call.in) call.in = base + places[2 * i];
      if (call.out) call.out = base + places[2 * i + 1];
    }
    if (bytes > 0) {
      job.ready.make_wait(copies);
      for (const Stretch& one : down) device::copy(base + one.at, one.device, one.bytes, copies);
      device::finish(copies);
    }
    if (alone)
      host_.run(job.calls.front());
    else
      host_.start_group(job.calls).wait(Deadline::after(kForever));
    for (const Stretch& one : up) device::copy(one.device, base + one.at, one.bytes, copies);
    if (!up.empty()) device::finish(copies);
  }

  // Overlapping buffers (in-place calls) overlap in the pinned buffer too.
  void lay_out(const Call& call, size_t& bytes, size_t* places, std::vector<Stretch>& down, std::vector<Stretch>& up) {
    const size_t element = size_of(call.dtype);
    const BufferCounts extents = buffer_counts_of(call, rank(), size());
    auto* in = static_cast<std::byte*>(const_cast<void*>(call.in));
    auto* out = static_cast<std::byte*>(call.out);
    const size_t in_bytes = in ? extents.in * element : 0, out_bytes = out ? extents.out * element : 0;
    const auto from = [](const std::byte* p) { return reinterpret_cast<uintptr_t>(p); };
    const bool overlap = in && out && from(in) < from(out) + std::max<size_t>(out_bytes, 1) &&
                         from(out) < from(in) + std::max<size_t>(in_bytes, 1);
    if (overlap) {
      const uintptr_t low = std::min(from(in), from(out));
      const uintptr_t high = std::max(from(in) + in_bytes, from(out) + out_bytes);
      places[0] = bytes + (from(in) - low);
      places[1] = bytes + (from(out) - low);
      bytes += high - low;
    } else {
      places[0] = bytes;
      bytes += rounded(in_bytes);
      places[1] = bytes;
      bytes += out_bytes;
    }
    bytes = rounded(bytes);
    if (call.op == Op::all_to_all_v) {
      for (size_t peer = 0; peer < call.send_counts.size(); ++peer) {
        const size_t to = call.send_offsets[peer] * element, at = call.recv_offsets[peer] * element;
        down.push_back({in + to, places[0] + to, call.send_counts[peer] * element});
        up.push_back({out + at, places[1] + at, call.recv_counts[peer] * element});
      }
      return;
    }
    if (in_bytes > 0) down.push_back({in, places[0], in_bytes});
    if (out_bytes > 0) up.push_back({out, places[1], out_bytes});
  }

  static size_t rounded(size_t bytes) { return (bytes + 511) / 512 * 512; }

  void make_room(size_t bytes) {
    if (buffer_ && buffer_->bytes >= bytes) return;
    if (buffer_) pinned_.give(std::exchange(buffer_, nullptr));
    pinned_.trim();
    buffer_ = pinned_.take(bytes, device::MemoryCategory::buffer);
  }

  const std::unique_ptr<Communicator> owned_;
  Communicator& host_;
  const device::Stream stream_;
  device::MemoryAccount& account_;
  device::GpuQueue queue_;
  const std::unique_ptr<device::SegmentSource> source_;
  device::MemoryPool pinned_;
  device::MemoryPool::PoolBlock* buffer_ = nullptr;
  mutable Worker worker_{"esp-staged"};  // last: ends first
};

}  // namespace

std::unique_ptr<Communicator> make_staged(Communicator& host, const device::Stream& stream,
                                          device::MemoryAccount& account) {
  return std::make_unique<Staged>(nullptr, host, stream, account);
}

std::unique_ptr<Communicator> make_staged(std::unique_ptr<Communicator> host, const device::Stream& stream,
                                          device::MemoryAccount& account) {
  Communicator& lent = *host;
  return std::make_unique<Staged>(std::move(host), lent, stream, account);
}

}  // namespace esp::comm
