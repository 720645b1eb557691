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

// A range of GPU memory and its offset in the pinned buffer.
struct StagedRange {
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
    wait_for_worker();
    if (buffer_) pinned_.give(buffer_);
  }

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }

  void run(const Call& call) override {
    if (!on_device(call)) {
      wait_for_worker();
      return host_.run(call);
    }
    start(call).wait(Deadline::after(kForever));
  }

  Work start(const Call& call) override { return start_group({&call, 1}); }

  // Copies the spans and names of the calls, because the caller may release them.
  Work start_group(std::span<const Call> calls) override {
    auto job = std::make_shared<Job>(stream_.device);
    for (const Call& call : calls) job->add(call);
    job->ready.record(stream_);
    return worker_.post([this, job, alone = calls.size() == 1] { execute(*job, alone); });
  }

  std::unique_ptr<Communicator> split(int colour, int key) override {
    wait_for_worker();
    auto part = host_.split(colour, key);
    return part ? make_staged(std::move(part), stream_, account_) : nullptr;
  }
  std::shared_ptr<void> allocate(size_t bytes) override { return host_.allocate(bytes); }
  std::unique_ptr<net::Transport> open_transport() override {
    wait_for_worker();
    return host_.open_transport();
  }
  void abort(const std::string& why) override { host_.abort(why); }
  std::string explain(const Call& call) const override { return "staged through the host: " + host_.explain(call); }
  std::vector<CallStats> stats() const override {
    wait_for_worker();
    return host_.stats();
  }

 private:
  // upper bound of a wait for the worker; the calls on the host have their own deadlines
  static constexpr Duration kForever = std::chrono::hours(24);

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
    device::GpuEvent ready;  // recorded after the work that computes the inputs
  };

  static bool on_device(const Call& call) {
    return (call.in && !device::is_host_accessible(call.in)) || (call.out && !device::is_host_accessible(call.out));
  }

  // Waits until no call is in flight, so that this thread may call the host communicator.
  void wait_for_worker() const {
    if (!worker_.idle()) worker_.post([] {}).wait(Deadline::after(kForever));
  }

  void execute(Job& job, bool alone) {
    const device::Stream copies = queue_.stream();
    std::vector<StagedRange> to_host, to_device;
    std::vector<size_t> offsets(job.calls.size() * 2);
    size_t bytes = 0;
    for (size_t i = 0; i < job.calls.size(); ++i)
      if (on_device(job.calls[i])) plan_copies(job.calls[i], bytes, &offsets[2 * i], to_host, to_device);
    if (bytes > 0) grow_buffer(bytes);
    std::byte* const base = buffer_ ? buffer_->data : nullptr;
    for (size_t i = 0; i < job.calls.size(); ++i) {
      Call& call = job.calls[i];
      if (!on_device(call)) continue;
      if (call.in) call.in = base + offsets[2 * i];
      if (call.out) call.out = base + offsets[2 * i + 1];
    }
    if (bytes > 0) {
      job.ready.make_wait(copies);
      for (const StagedRange& one : to_host) device::copy(base + one.at, one.device, one.bytes, copies);
      device::finish(copies);
    }
    if (alone)
      host_.run(job.calls.front());
    else
      host_.start_group(job.calls).wait(Deadline::after(kForever));
    for (const StagedRange& one : to_device) device::copy(one.device, base + one.at, one.bytes, copies);
    if (!to_device.empty()) device::finish(copies);
  }

  // Assigns each buffer an offset in the pinned buffer. Buffers that overlap (in-place calls) also overlap in the
  // pinned buffer.
  void plan_copies(const Call& call, size_t& bytes, size_t* offsets, std::vector<StagedRange>& to_host,
                   std::vector<StagedRange>& to_device) {
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
      offsets[0] = bytes + (from(in) - low);
      offsets[1] = bytes + (from(out) - low);
      bytes += high - low;
    } else {
      offsets[0] = bytes;
      bytes += rounded(in_bytes);
      offsets[1] = bytes;
      bytes += out_bytes;
    }
    bytes = rounded(bytes);
    if (call.op == Op::all_to_all_v) {
      for (size_t peer = 0; peer < call.send_counts.size(); ++peer) {
        const size_t to = call.send_offsets[peer] * element, at = call.recv_offsets[peer] * element;
        to_host.push_back({in + to, offsets[0] + to, call.send_counts[peer] * element});
        to_device.push_back({out + at, offsets[1] + at, call.recv_counts[peer] * element});
      }
      return;
    }
    if (in_bytes > 0) to_host.push_back({in, offsets[0], in_bytes});
    if (out_bytes > 0) to_device.push_back({out, offsets[1], out_bytes});
  }

  static size_t rounded(size_t bytes) { return (bytes + 511) / 512 * 512; }

  void grow_buffer(size_t bytes) {
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
  mutable Worker worker_{"esp-staged"};  // declared last, so that the thread ends before other members are destroyed
};

}  // namespace

std::unique_ptr<Communicator> make_staged(Communicator& host, const device::Stream& stream,
                                          device::MemoryAccount& account) {
  return std::make_unique<Staged>(nullptr, host, stream, account);
}

std::unique_ptr<Communicator> make_staged(std::unique_ptr<Communicator> host, const device::Stream& stream,
                                          device::MemoryAccount& account) {
  Communicator& borrowed = *host;
  return std::make_unique<Staged>(std::move(host), borrowed, stream, account);
}

}  // namespace esp::comm
