#include "apps/espalier/calibrate_kernels.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "esp/base/clock.h"
#include "esp/base/error.h"
#include "esp/device/stream.h"
#include "esp/kernel/activation.h"
#include "esp/kernel/attention.h"
#include "esp/kernel/cross_entropy.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/gemm.h"
#include "esp/kernel/norm.h"
#include "esp/kernel/optimizer_step.h"
#include "esp/kernel/peak.h"
#include "esp/plan/calibrated_rates.h"

namespace esp::app {
namespace {

using plan::CalibratedRates;
using Call = std::function<void(const device::Stream&)>;
using MakeCall = std::function<Call()>;  // allocates buffers and returns a call that uses them

std::vector<std::byte> numbers(int64_t count, DType dtype) {
  std::vector<std::byte> memory(static_cast<size_t>(count) * size_of(dtype));
  kernel::fill_uniform(memory.data(), -1, 1, 1, 0, 0, count, dtype, {});
  return memory;
}

double seconds_of(const Call& call, const device::Stream& stream, int times) {
  const int64_t begin = now_ns();
  for (int i = 0; i < times; ++i) call(stream);
  return static_cast<double>(now_ns() - begin) * 1e-9 / times;
}

// Times of a few samples in ascending order. Each sample is much longer than the clock's resolution.
std::vector<double> samples_of(const Call& call, const device::Stream& stream, double budget_s) {
  const double first = std::max(1e-7, std::min(seconds_of(call, stream, 1), seconds_of(call, stream, 1)));
  const int times = std::max(1, static_cast<int>(200e-6 / first));
  constexpr size_t kLeast = 5, kMost = 200;
  const int64_t end = now_ns() + static_cast<int64_t>(budget_s * 1e9);
  std::vector<double> samples;
  while (samples.size() < kLeast || (samples.size() < kMost && now_ns() < end))
    samples.push_back(std::max(1e-9, seconds_of(call, stream, times)));
  std::sort(samples.begin(), samples.end());
  return samples;
}

// Time of one call: the minimum of the samples, because other load can only make a call longer.
double time_call(const Call& call, const device::Stream& stream, double budget_s) {
  return samples_of(call, stream, budget_s).front();
}

// Time of one call while all other cores run the same call.
double time_on_all_cores(const MakeCall& make, int cores, double budget_s) {
  std::atomic<bool> over = false;
  std::atomic<int> running = 0;
  std::vector<std::thread> others;
  for (int i = 1; i < cores; ++i)
    others.emplace_back([&] {
      const Call call = make();
      running.fetch_add(1);
      while (!over.load(std::memory_order_relaxed)) call({});
    });
  const Call call_here = make();
  while (running.load() + 1 < cores) std::this_thread::yield();
  // Takes the median of the samples. The minimum would be a sample during which other cores were idle.
  const std::vector<double> samples = samples_of(call_here, {}, budget_s);
  const double seconds = samples[samples.size() / 2];
  over = true;
  for (std::thread& thread : others) thread.join();
  return seconds;
}

class KernelCalibration {
 public:
  KernelCalibration(KernelRates& rates, const std::string& type, int cores, double budget_s)
      : rates_(rates),
        type_(type),
        dtype_(type == "bf16" ? DType::bf16 : DType::f32),
        cores_(cores),
        budget_s_(budget_s),
        pool_(cores) {
    one_call_.pool = &pool_;
  }

  // Measures the whole list of kernels twice. The two measurements of one kernel are therefore far apart in time, and a
  // disturbance affects only one of them. The faster one counts.
  void run() {
    for (int visit = 0; visit < kVisits; ++visit) {
      gemms();
      streams();
      attention();
    }
    smallest();
  }
  static constexpr int kVisits = 2;

 private:
  // Records work per second in both modes: "whole" is one call on all cores, "shared" one call per core at the same
  // time.
  template <typename Key>
  void rate(const Key& key, double work, const MakeCall& make) {
    keep(key("whole"), work / time_call(make(), one_call_, budget_s_));
    keep(key("shared"), work / time_on_all_cores(make, cores_, budget_s_));
  }
  void keep(const std::string& key, double rate) {
    double& best = rates_[key];
    best = std::max(best, rate);
  }

  void gemms() {
    for (const int m : CalibratedRates::kRows)
      for (const int n : CalibratedRates::kWidths)
        for (const int k : CalibratedRates::kDepths) {
          gemm("forward", m, n, k, {});
          kernel::GemmOptions input, weight;
          input.transpose_b = true;
          gemm("input", m, n, k, input);
          weight.transpose_a = true;
          weight.beta = 1;
          gemm("weight", m, n, k, weight);
        }
  }
  void gemm(const char* kind, int m, int n, int k, const kernel::GemmOptions& options) {
    const double flops = 2.0 * m * n * k;
    rate([&](const char* mode) { return CalibratedRates::gemm_key(mode, type_, kind, m, n, k); }, flops,
         [&]() -> Call {
           auto a = std::make_shared<std::vector<std::byte>>(numbers(int64_t{m} * k, dtype_));
           auto b = std::make_shared<std::vector<std::byte>>(numbers(int64_t{k} * n, dtype_));
           auto c = std::make_shared<std::vector<std::byte>>(numbers(int64_t{m} * n, dtype_));
           const DType dtype = dtype_;
           return [=](const device::Stream& stream) {
             kernel::gemm(c->data(), a->data(), b->data(), m, n, k, options, dtype, stream);
           };
         });
  }

  struct Arrays {
    std::vector<std::vector<std::byte>> of;
    void* operator[](size_t i) { return of[i].data(); }
  };
  // Measures a memory-bound kernel that reads and writes `arrays` arrays, `bytes` bytes in total.
  void stream(const char* kernel, int arrays, DType dtype,
              const std::function<void(Arrays&, int64_t count, const device::Stream&)>& body) {
    for (const double bytes : CalibratedRates::kStreamBytes) {
      constexpr int64_t kRow = 256;
      const int64_t count =
          std::max<int64_t>(1, static_cast<int64_t>(bytes) / arrays / static_cast<int64_t>(size_of(dtype)) / kRow) *
          kRow;
      const double moved = static_cast<double>(count) * arrays * static_cast<double>(size_of(dtype));
      rate([&](const char* mode) { return CalibratedRates::stream_key(mode, type_, kernel, bytes); }, moved,
           [&]() -> Call {
             auto memory = std::make_shared<Arrays>();
             for (int i = 0; i < std::max(4, arrays); ++i) memory->of.push_back(numbers(count, dtype));
             return [memory, count, &body](const device::Stream& on) { body(*memory, count, on); };
           });
    }
  }

  void streams() {
    const DType dtype = dtype_;
    constexpr int64_t kRow = 256;
    stream("add", 3, dtype, [dtype](Arrays& a, int64_t count, const device::Stream& on) {
      kernel::add(a[0], a[1], a[2], count, dtype, on);
    });
    stream("activation", 2, dtype, [dtype](Arrays& a, int64_t count, const device::Stream& on) {
      kernel::activation_forward(a[0], a[1], count, kernel::Activation::gelu, dtype, on);
    });
    stream("norm", 4, dtype, [dtype](Arrays& a, int64_t count, const device::Stream& on) {
      thread_local std::vector<float> mean, rstd;
      const kernel::NormShape shape{kernel::NormKind::layer, count / kRow, kRow};
      mean.resize(static_cast<size_t>(shape.rows));
      rstd.resize(static_cast<size_t>(shape.rows));
      kernel::norm_forward(a[0], mean.data(), rstd.data(), a[1], a[2], a[3], a[2], a[2], shape, dtype, on);
    });
    stream("norm_back", 3, dtype, [dtype](Arrays& a, int64_t count, const device::Stream& on) {
      thread_local std::vector<float> ones;
      const kernel::NormShape shape{kernel::NormKind::layer, count / kRow, kRow};
      ones.assign(static_cast<size_t>(shape.rows), 1.0F);
      kernel::norm_backward_input(a[0], a[1], a[2], ones.data(), ones.data(), a[2], shape, false, dtype, on);
    });
    stream("loss", 2, dtype, [dtype](Arrays& a, int64_t count, const device::Stream& on) {
      constexpr int64_t kClasses = 1024;
      const int64_t rows = std::max<int64_t>(1, count / kClasses);
      thread_local std::vector<int32_t> targets;
      thread_local std::vector<float> losses;
      targets.assign(static_cast<size_t>(rows), 7);
      losses.resize(static_cast<size_t>(rows));
      kernel::cross_entropy_fused(losses.data(), a[0], targets.data(), 1.0, rows, kClasses, kClasses, dtype, on);
    });
    stream("update", 7, DType::f32, [](Arrays& a, int64_t count, const device::Stream& on) {
      kernel::StepBuffers buffers{a[0], nullptr, a[1], a[2], a[3], count, DType::f32};
      kernel::AdamStep step;
      step.lr = 1e-4;
      kernel::adam_step(buffers, step, on);
    });
  }

  void attention() {
    constexpr int64_t kHeads = 4, kHeadDim = 64;
    for (const int tokens : CalibratedRates::kTokens)
      for (const bool back : {false, true}) {
        const int64_t batch = std::max(1, 512 / tokens), width = kHeads * kHeadDim, rows = batch * tokens;
        const double flops = (back ? 5.0 : 2.0) * static_cast<double>(rows * width) * (tokens + 1);
        const DType dtype = dtype_;
        rate(
            [&](const char* mode) {
              return CalibratedRates::attention_key(mode, type_, back ? "backward" : "forward", tokens);
            },
            flops,
            [=]() -> Call {
              kernel::AttentionShape shape;
              shape.batch = batch;
              shape.num_queries = shape.num_keys = tokens;
              shape.heads = shape.kv_heads = kHeads;
              shape.head_dim = kHeadDim;
              shape.q = shape.k = shape.v = {tokens * 3 * width, 3 * width};
              shape.o = {tokens * width, width};
              shape.causal = true;
              shape.scale = 1 / std::sqrt(static_cast<double>(kHeadDim));
              auto qkv = std::make_shared<std::vector<std::byte>>(numbers(3 * rows * width, dtype));
              auto d_qkv = std::make_shared<std::vector<std::byte>>(*qkv);
              auto o = std::make_shared<std::vector<std::byte>>(numbers(rows * width, dtype));
              auto lse = std::make_shared<std::vector<float>>(static_cast<size_t>(rows * kHeads), 1.0F);
              auto space = std::make_shared<std::vector<std::byte>>();
              const size_t part = static_cast<size_t>(width) * size_of(dtype);
              return [=](const device::Stream& on) {
                if (!back)
                  return kernel::attention_forward(o->data(), lse->data(), qkv->data(), qkv->data() + part,
                                                   qkv->data() + 2 * part, shape, dtype, on);
                space->resize(static_cast<size_t>(kernel::attention_workspace_bytes(shape, dtype, on)));
                kernel::attention_backward(d_qkv->data(), d_qkv->data() + part, d_qkv->data() + 2 * part, o->data(),
                                           o->data(), qkv->data(), qkv->data() + part, qkv->data() + 2 * part,
                                           lse->data(), space->data(), shape, dtype, on);
              };
            });
      }
  }

  // Launch overhead: the time of the smallest kernel.
  void smallest() {
    const DType dtype = dtype_;
    const MakeCall make = [=]() -> Call {
      auto a = std::make_shared<std::vector<std::byte>>(numbers(64, dtype));
      return [=](const device::Stream& on) { kernel::add(a->data(), a->data(), a->data(), 64, dtype, on); };
    };
    rates_["whole.kernel_s"] = time_call(make(), one_call_, budget_s_);
    rates_["shared.kernel_s"] = time_on_all_cores(make, cores_, budget_s_);
  }

  KernelRates& rates_;
  const std::string type_;
  const DType dtype_;
  const int cores_;
  const double budget_s_;
  device::ThreadPool pool_;
  device::Stream one_call_;
};

}  // namespace

void measure_kernels(KernelRates& rates, const std::string& type, int cores, double seconds) {
  const double calls = 2.0 * KernelCalibration::kVisits * (3 * 4 * 4 * 3 + 6 * 2 + 3 * 2 + 1);
  KernelCalibration(rates, type, cores, seconds / calls).run();
}

double measure_memcpy(int cores) {
  device::ThreadPool pool(cores);
  device::Stream stream;
  stream.pool = &pool;
  const int64_t bytes = int64_t{128} << 20;
  std::vector<std::byte> from(static_cast<size_t>(bytes), std::byte{1}), to(from.size());
  const Call copy = [&](const device::Stream& on) {
    device::parallel_for(on, bytes, 4096, [&](int64_t begin, int64_t end) {
      std::memcpy(to.data() + begin, from.data() + begin, static_cast<size_t>(end - begin));
    });
  };
  return 2 * static_cast<double>(bytes) / time_call(copy, stream, 0.5);
}

double measure_peak(int cores) {
  device::ThreadPool pool(cores);
  device::Stream stream;
  stream.pool = &pool;
  return kernel::fma_peak(DType::f32, stream);
}

double measure_disk(const std::string& folder) {
  std::string path = folder + "/espalier-calibrate-XXXXXX";
  const int fd = ::mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) throw IoError(fmt::format("{}: cannot create a temporary file: {}", path, std::strerror(errno)));
  const std::vector<std::byte> data(size_t{16} << 20, std::byte{7});
  const int64_t begin = now_ns();
  double written = 0;
  bool complete = true;
  for (int i = 0; i < 8 && complete; ++i) {
    complete = ::write(fd, data.data(), data.size()) == static_cast<ssize_t>(data.size());
    written += static_cast<double>(data.size());
  }
  complete = ::fsync(fd) == 0 && complete;
  const double seconds = static_cast<double>(now_ns() - begin) * 1e-9;
  ::close(fd);
  ::unlink(path.c_str());
  if (!complete) throw IoError(fmt::format("{}: cannot write the temporary file completely", path));
  return written / seconds;
}

}  // namespace esp::app
