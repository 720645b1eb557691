// Compressor randomk: sends K coordinates, drawn from a seed that all ranks share. Only values are sent, without
// indices, and encoded vectors can be added. Scaled by n/K it is unbiased; unscaled it is contractive.
#include "esp/kernel/sparse.h"
#include "esp/sync/compress/compressor_factories.h"
#include "esp/sync/compress/kept_count.h"

namespace esp::sync {
namespace {

class RandomK final : public Compressor {
 public:
  RandomK(const SpecArguments::FractionOrCount& share, bool scaled) : share_(share), scaled_(scaled) {}

  void check(int64_t count) const override {
    Compressor::check(count);
    check_share("randomk", share_, count);
  }
  size_t encoded_bytes(int64_t count, DType dtype) const override {
    return static_cast<size_t>(kept_count(share_, count)) * size_of(dtype);
  }
  std::optional<DType> summable(DType dtype) const override { return dtype; }
  Guarantee guarantee(int64_t count) const override {
    if (count == 0) return {0.0, 1.0};
    const double kept = static_cast<double>(kept_count(share_, count)) / static_cast<double>(count);
    if (scaled_) return {1 / kept - 1, {}};
    return {{}, kept};
  }
  size_t encode(std::byte* code, const void* x, int64_t count, DType dtype, const RandomKey& draw,
                const device::Stream&) const override {
    const int64_t k = kept_count(share_, count);
    if (k == 0) return 0;
    const double factor = scaled_ ? static_cast<double>(count) / static_cast<double>(k) : 1;
    kernel::gather_coordinates(code, x, {count, draw.seed, draw.shared_stream()}, k, factor, dtype);
    return encoded_bytes(count, dtype);
  }
  void decode(void* y, WriteMode into, std::span<const std::byte> code, int64_t count, DType dtype,
              const RandomKey& draw, const device::Stream& stream) const override {
    require_length(code, encoded_bytes(count, dtype), count);
    if (count == 0) return;
    kernel::scatter_coordinates(y, into, code.data(), {count, draw.seed, draw.shared_stream()},
                                kept_count(share_, count), count, dtype, stream);
  }

 private:
  const SpecArguments::FractionOrCount share_;
  const bool scaled_;
};

}  // namespace

std::unique_ptr<Compressor> make_random_k(SpecArguments& arguments) {
  bool unscaled = arguments.flag("unscaled");
  const SpecArguments::FractionOrCount share =
      unscaled ? SpecArguments::FractionOrCount{0.01, 0} : arguments.fraction_or_count("kept values", 0.01);
  unscaled = unscaled || arguments.flag("unscaled");
  return std::make_unique<RandomK>(share, !unscaled);
}

}  // namespace esp::sync
