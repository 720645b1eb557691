// K coordinates drawn from the shared seed, so only values are sent and encoded vectors can be added. Scaled by n/K it
// is unbiased; unscaled it is a contraction.
#include "esp/kernel/sparse.h"
#include "esp/sync/compress/compressors_list.h"
#include "esp/sync/compress/share.h"

namespace esp::sync {
namespace {

class RandomK final : public Compressor {
 public:
  RandomK(const Arguments::Share& share, bool scaled) : share_(share), scaled_(scaled) {}

  void check(int64_t count) const override {
    Compressor::check(count);
    check_share("randomk", share_, count);
  }
  size_t code_bytes(int64_t count, DType dtype) const override {
    return static_cast<size_t>(kept_of(share_, count)) * size_of(dtype);
  }
  std::optional<DType> summable(DType dtype) const override { return dtype; }
  Guarantee guarantee(int64_t count) const override {
    if (count == 0) return {0.0, 1.0};
    const double kept = static_cast<double>(kept_of(share_, count)) / static_cast<double>(count);
    if (scaled_) return {1 / kept - 1, {}};
    return {{}, kept};
  }
  size_t encode(std::byte* code, const void* x, int64_t count, DType dtype, const RandomKey& draw,
                const device::Stream&) const override {
    const int64_t k = kept_of(share_, count);
    if (k == 0) return 0;
    const double factor = scaled_ ? static_cast<double>(count) / static_cast<double>(k) : 1;
    kernel::gather_at(code, x, {count, draw.seed, draw.shared()}, k, factor, dtype);
    return code_bytes(count, dtype);
  }
  void decode(void* y, WriteMode into, std::span<const std::byte> code, int64_t count, DType dtype,
              const RandomKey& draw, const device::Stream& stream) const override {
    require_length(code, code_bytes(count, dtype), count);
    if (count == 0) return;
    kernel::scatter_at(y, into, code.data(), {count, draw.seed, draw.shared()}, kept_of(share_, count), count, dtype,
                       stream);
  }

 private:
  const Arguments::Share share_;
  const bool scaled_;
};

}  // namespace

std::unique_ptr<Compressor> make_random_k(Arguments& arguments) {
  bool unscaled = arguments.flag("unscaled");
  const Arguments::Share share = unscaled ? Arguments::Share{0.01, 0} : arguments.share("kept values", 0.01);
  unscaled = unscaled || arguments.flag("unscaled");
  return std::make_unique<RandomK>(share, !unscaled);
}

}  // namespace esp::sync
