#include "esp/comm/nccl/nccl.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <cuda_runtime.h>
#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/comm/arguments.h"
#include "esp/comm/nccl/library.h"
#include "esp/comm/staged.h"
#include "esp/comm/worker.h"
#include "esp/device/cuda/check.h"
#include "esp/device/cuda/queue.h"

namespace esp::comm {
namespace {

constexpr Duration kForever = std::chrono::hours(24);

std::optional<ncclDataType_t> type_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return ncclFloat64;
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::i64:
      return ncclInt64;
    case DType::i32:
      return ncclInt32;
    case DType::i8:
      return ncclInt8;
    case DType::u8:
      return ncclUint8;
    case DType::i16:
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<ncclRedOp_t> operation_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return ncclSum;
    case ReduceOp::prod:
      return ncclProd;
    case ReduceOp::min:
      return ncclMin;
    case ReduceOp::max:
      return ncclMax;
    case ReduceOp::avg:
      return ncclAvg;
  }
  return std::nullopt;
}

bool moves_data(Op op) {
  return op != Op::barrier && op != Op::signal && op != Op::wait;
}

// Host name and PCI bus id of a rank's GPU; equal names show that two ranks share a GPU.
using GpuName = std::array<char, 320>;
GpuName name_of_gpu(device::Device device) {
  GpuName name{};
  char host[256] = {}, bus[32] = {};
  gethostname(host, sizeof host - 1);
  ESP_CUDA_CHECK(cudaDeviceGetPCIBusId(bus, sizeof bus, device.index));
  fmt::format_to_n(name.data(), name.size() - 1, "{} {}", host, bus);
  return name;
}

class Nccl final : public Communicator {
 public:
  Nccl(std::unique_ptr<Communicator> owned, Communicator& host, const device::Stream& stream,
       device::MemoryAccount& account)
      : owned_(std::move(owned)),
        host_(host),
        stream_(stream),
        account_(account),
        library_(nccl_library()),
        queue_(stream.device, &account, device::GpuQueue::Priority::high),
        staged_(make_staged(host, stream, account)) {
    ncclUniqueId id{};
    if (rank() == 0) check(library_.get_unique_id(&id), "ncclGetUniqueId");
    host_.broadcast(&id, sizeof id, DType::u8, 0);
    ESP_CUDA_CHECK(cudaSetDevice(stream.device.index));
    check(library_.init_rank(&comm_, size(), id, rank()), "ncclCommInitRank");
  }

  ~Nccl() override {
    wait_for_worker();
    const std::lock_guard lock(mutex_);
    if (comm_) library_.destroy(comm_);
  }

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }

  void run(const Call& call) override {
    if (uses_nccl({&call, 1})) return start(call).wait(Deadline::after(kForever));
    wait_for_worker();
    staged_->run(call);
  }

  Work start(const Call& call) override { return start_group({&call, 1}); }

  // NCCL calls and staged calls run in the order in which they were made.
  Work start_group(std::span<const Call> calls) override {
    if (!uses_nccl(calls)) {
      wait_for_worker();
      return staged_work_ = staged_->start_group(calls);
    }
    for (const Call& call : calls) check_arguments(call, rank(), size());
    auto job = std::make_shared<Job>(stream_.device);
    for (const Call& call : calls) job->add(call);
    job->ready.record(stream_);
    return worker_.post([this, job] { execute(*job); });
  }

  std::unique_ptr<Communicator> split(int colour, int key) override {
    wait_for_worker();
    staged_work_.wait(Deadline::after(kForever));
    auto part = host_.split(colour, key);
    if (!part) return nullptr;
    Communicator& borrowed = *part;
    return std::make_unique<Nccl>(std::move(part), borrowed, stream_, account_);
  }
  std::shared_ptr<void> allocate(size_t bytes) override { return host_.allocate(bytes); }
  std::unique_ptr<net::Transport> open_transport() override {
    wait_for_worker();
    return staged_->open_transport();
  }
  void abort(const std::string& why) override {
    abort_group();
    host_.abort(why);
  }
  std::string explain(const Call& call) const override {
    return uses_nccl({&call, 1}) ? fmt::format("NCCL {}", nccl_version()) : staged_->explain(call);
  }
  std::vector<CallStats> stats() const override {
    wait_for_worker();
    std::vector<CallStats> all = staged_->stats();
    for (const CallStats& one : stats_) all.push_back(one);
    return all;
  }

 private:
  struct Job {
    explicit Job(device::Device device) : ready(device) {}
    void add(const Call& call) {
      Call& own = calls.emplace_back(call);
      for (auto* counts : {&own.send_counts, &own.send_offsets, &own.recv_counts, &own.recv_offsets}) {
        spans.emplace_back(counts->begin(), counts->end());
        *counts = spans.back();
      }
    }
    std::vector<Call> calls;
    std::deque<std::vector<size_t>> spans;
    device::GpuEvent ready;  // recorded after the work that computes the inputs
  };

  static bool on_device(const Call& call) {
    return (call.in && !device::is_host_accessible(call.in)) || (call.out && !device::is_host_accessible(call.out));
  }
  // True if NCCL runs these calls. All ranks get the same result: it depends only on the calls and on the kind of
  // memory, and the buffers of a call are in GPU memory on all ranks or on none.
  static bool uses_nccl(std::span<const Call> calls) {
    return std::all_of(calls.begin(), calls.end(), [](const Call& call) {
      return moves_data(call.op) && on_device(call) && type_of(call.dtype) && call.algorithm == "auto";
    });
  }

  void check(ncclResult_t result, const char* what) const {
    if (result == ncclSuccess || result == ncclInProgress) return;
    throw CommError(CommError::Kind::lost, -1,
                    fmt::format("NCCL failed in {}: {}", what, library_.error_string(result)));
  }

  // Waits until no NCCL call is in flight. Then this thread may use the host communicator.
  void wait_for_worker() const {
    if (!worker_.idle()) worker_.post([] {}).wait(Deadline::after(kForever));
  }

  void abort_group() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    if (comm_) library_.abort(std::exchange(comm_, nullptr));
  }

  void execute(Job& job) {
    const int64_t begun = now_ns();
    const device::Stream queue = queue_.stream();
    job.ready.make_wait(queue);
    {
      const std::lock_guard lock(mutex_);
      if (aborted_) throw CommError(CommError::Kind::aborted, -1, "the NCCL group was aborted");
      check(library_.group_start(), "ncclGroupStart");
      for (const Call& call : job.calls) queue_call(call, device::handle_of(queue));
      check(library_.group_end(), describe(job.calls.front()).c_str());
    }
    device::GpuEvent done(stream_.device);
    done.record(queue);
    wait(done, job.calls.front());
    for (const Call& call : job.calls) count(call, begun, job.calls.size());
  }

  // Waits for the end of the call by polling, with pauses that grow from 2 µs to 200 µs.
  void wait(const device::GpuEvent& done, const Call& call) {
    const Deadline deadline = Deadline::after(call.timeout > Duration::zero() ? call.timeout : kForever);
    auto pause = std::chrono::microseconds(2);
    while (!done.passed()) {
      {
        const std::lock_guard lock(mutex_);
        if (aborted_) throw CommError(CommError::Kind::aborted, -1, "the NCCL group was aborted");
        ncclResult_t state = ncclSuccess;
        check(library_.async_error(comm_, &state), "ncclCommGetAsyncError");
        check(state, describe(call).c_str());
      }
      if (deadline.passed()) {
        abort_group();
        throw CommError(CommError::Kind::timeout, -1,
                        fmt::format("rank {} timed out in {} through NCCL", rank(), describe(call)));
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, std::chrono::microseconds(200));
    }
  }

  void queue_call(const Call& call, cudaStream_t queue) {
    const ncclDataType_t type = *type_of(call.dtype);
    const ncclRedOp_t reduce = *operation_of(call.reduce);
    const size_t element = size_of(call.dtype), n = call.count;
    const auto* in = static_cast<const std::byte*>(call.in);
    auto* out = static_cast<std::byte*>(call.out);
    const auto peers = static_cast<size_t>(size()), me = static_cast<size_t>(rank());
    const auto chunk = [&](size_t k) { return chunk_of(n, size(), static_cast<int>(k)); };
    const auto send = [&](const std::byte* from, size_t count, size_t to) {
      if (count) check(library_.send(from, count, type, static_cast<int>(to), comm_, queue), "sending");
    };
    const auto recv = [&](std::byte* to, size_t count, size_t from) {
      if (count) check(library_.recv(to, count, type, static_cast<int>(from), comm_, queue), "receiving");
    };
    const bool even = n % peers == 0;
    switch (call.op) {
      case Op::broadcast:
        return check(library_.broadcast(in, out, n, type, call.root, comm_, queue), "broadcast");
      case Op::reduce:
        return check(library_.reduce(in, out, n, type, reduce, call.root, comm_, queue), "reduce");
      case Op::all_reduce:
        return check(library_.all_reduce(in, out, n, type, reduce, comm_, queue), "all_reduce");
      case Op::reduce_scatter:
        if (even)
          return check(library_.reduce_scatter(in, out, n / peers, type, reduce, comm_, queue), "reduce_scatter");
        for (size_t k = 0; k < peers; ++k)  // one chunk per rank; some chunks have one element more
          check(library_.reduce(in + chunk(k).offset * element, out, chunk(k).count, type, reduce, static_cast<int>(k),
                                comm_, queue),
                "reduce_scatter");
        return;
      case Op::all_gather:
        if (even) return check(library_.all_gather(in, out, n / peers, type, comm_, queue), "all_gather");
        for (size_t k = 0; k < peers; ++k)
          check(library_.broadcast(in, out + chunk(k).offset * element, chunk(k).count, type, static_cast<int>(k),
                                   comm_, queue),
                "all_gather");
        return;
      case Op::all_to_all:
        for (size_t k = 0; k < peers; ++k) {
          send(in + n / peers * k * element, n / peers, k);
          recv(out + n / peers * k * element, n / peers, k);
        }
        return;
      case Op::all_to_all_v:
        for (size_t k = 0; k < peers; ++k) {
          send(in + call.send_offsets[k] * element, call.send_counts[k], k);
          recv(out + call.recv_offsets[k] * element, call.recv_counts[k], k);
        }
        return;
      case Op::gather:
        send(in, chunk(me).count, static_cast<size_t>(call.root));
        for (size_t k = 0; k < peers && rank() == call.root; ++k)
          recv(out + chunk(k).offset * element, chunk(k).count, k);
        return;
      case Op::scatter:
        for (size_t k = 0; k < peers && rank() == call.root; ++k)
          send(in + chunk(k).offset * element, chunk(k).count, k);
        return recv(out, chunk(me).count, static_cast<size_t>(call.root));
      case Op::send:
        return send(in, n, static_cast<size_t>(call.root));
      case Op::recv:
        return recv(out, n, static_cast<size_t>(call.root));
      case Op::barrier:
      case Op::signal:
      case Op::wait:
        break;
    }
    ESP_CHECK(false, "{} is not a data transfer", name_of(call.op));
  }

  void count(const Call& call, int64_t begun, size_t num_calls) {
    auto row = std::find_if(stats_.begin(), stats_.end(), [&](const CallStats& one) { return one.op == call.op; });
    if (row == stats_.end()) row = stats_.insert(stats_.end(), CallStats{call.op, "nccl", "nccl"});
    const BufferCounts extents = buffer_counts_of(call, rank(), size());
    row->calls += 1;
    row->bytes_sent += extents.in * size_of(call.dtype);
    row->bytes_received += extents.out * size_of(call.dtype);
    row->ms += static_cast<double>(now_ns() - begun) * 1e-6 / static_cast<double>(num_calls);
  }

  const std::unique_ptr<Communicator> owned_;
  Communicator& host_;
  const device::Stream stream_;
  device::MemoryAccount& account_;
  const NcclLibrary& library_;
  device::GpuQueue queue_;
  const std::unique_ptr<Communicator> staged_;  // runs the calls that NCCL does not support
  Work staged_work_;                            // the last call started on staged_
  mutable std::mutex mutex_;                    // guards the next two members; `abort` is called from another thread
  ncclComm_t comm_ = nullptr;
  bool aborted_ = false;
  std::vector<CallStats> stats_;       // used by the worker's thread, or by a caller after wait_for_worker
  mutable Worker worker_{"esp-nccl"};  // declared last, so that the thread ends before other members are destroyed
};

}  // namespace

std::string nccl_version(std::string* problem) {
  const NcclLibrary& library = nccl_library();
  if (problem) *problem = library.problem;
  if (!library.problem.empty()) return {};
  const int v = library.version;
  return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

std::string nccl_unsupported_reason(Communicator& host, device::Device device) {
  const auto ranks = static_cast<size_t>(host.size());
  std::vector<GpuName> names(ranks);
  const std::string& problem = nccl_library().problem;
  const GpuName mine = problem.empty() ? name_of_gpu(device) : GpuName{};
  host.all_gather(mine.data(), names.data(), mine.size(), DType::u8);
  for (size_t r = 0; r < ranks; ++r) {
    if (names[r][0] == '\0')
      return static_cast<int>(r) == host.rank() ? problem : fmt::format("NCCL cannot be used on rank {}", r);
    for (size_t other = 0; other < r; ++other)
      if (names[r] == names[other]) return fmt::format("ranks {} and {} share a GPU ({})", other, r, names[r].data());
  }
  return {};
}

std::unique_ptr<Communicator> make_nccl(Communicator& host, const device::Stream& stream,
                                        device::MemoryAccount& account) {
  return std::make_unique<Nccl>(nullptr, host, stream, account);
}

}  // namespace esp::comm
