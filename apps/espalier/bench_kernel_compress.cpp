// Times the compressors on 64 M values, and PowerSGD on one large matrix. GB/s always count the fp32 vector (the input
// of encode, the output of decode), not the encoded bytes. A compressor saves time on a link that is slower than its
// rate.
#include <fmt/format.h>

#include "apps/espalier/bench_kernel.h"
#include "esp/base/error.h"
#include "esp/kernel/elementwise.h"
#include "esp/sync/compress/power_sgd.h"

namespace esp::app {
namespace {

std::vector<float> normals(int64_t count) {
  std::vector<float> x(static_cast<size_t>(count));
  kernel::fill_normal(x.data(), 0, 1e-3, 1, 0, 0, count, DType::f32, {});
  return x;
}

void time_power_sgd(KernelTimer& timer, int64_t rows, int64_t cols, int64_t rank) {
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  sync::PowerSgdSetup setup;
  setup.context = {timer.stream(), &pool};
  setup.count = rows * cols;
  setup.parts = {{0, rows, cols}};
  setup.rank = rank;
  const auto feedback = sync::make_power_sgd(setup);
  const std::vector<float> g = normals(setup.count);
  std::vector<float> out(g.size());
  timer.bytes("compress", fmt::format("powersgd:{} {}x{} error, encode and decode", rank, rows, cols),
              4 * static_cast<double>(setup.count), [&] { feedback->exchange(out.data(), g.data()); });
}

}  // namespace

void time_compress(KernelTimer& timer) {
  if (timer.dtype() != DType::f32)
    throw UsageError(
        fmt::format("--dtype: got {}; expected f32 for compress. Leave --dtype out", name_of(timer.dtype())));
  const int64_t n = int64_t{64} << 20;
  const std::vector<float> x = normals(n);
  std::vector<float> y(x.size());
  std::vector<std::byte> encoded;
  for (const char* spec : {"fp16", "bf16", "int8:256", "int8:256:stochastic", "int4:128", "qsgd:16", "natural", "sign",
                           "onebit", "topk:0.01", "topk:0.05", "randomk:0.01", "threshold:0.0026"}) {
    const auto compressor = sync::make_compressor(spec);
    encoded.resize(compressor->encoded_bytes(n, DType::f32));
    size_t length = 0;
    const double bytes = 4 * static_cast<double>(n);
    auto encode = [&] {
      length = compressor->encode(encoded.data(), x.data(), n, DType::f32, {1, 2, 3}, timer.stream());
    };
    auto decode = [&](sync::WriteMode into) {
      compressor->decode(y.data(), into, {encoded.data(), length}, n, DType::f32, {1, 2, 3}, timer.stream());
    };
    timer.bytes("compress", fmt::format("{} encode 64 Mi values", spec), bytes, encode);
    timer.bytes("compress", fmt::format("{} decode", spec), bytes, [&] { decode(sync::WriteMode::overwrite); });
    timer.bytes("compress", fmt::format("{} decode and add", spec), bytes, [&] { decode(sync::WriteMode::add); });
    timer.bytes("compress", fmt::format("{} encode and decode", spec), bytes, [&] {
      encode();
      decode(sync::WriteMode::overwrite);
    });
  }
  time_power_sgd(timer, 4096, 4096, 4);
  time_power_sgd(timer, 768, 3072, 4);
}

}  // namespace esp::app
