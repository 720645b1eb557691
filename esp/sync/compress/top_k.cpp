// Compressor topk: keeps the K values of largest magnitude; of equal magnitudes the lower index is kept. Layout: K
// indices (u32, ascending), then K values.
#include "esp/kernel/sparse.h"
#include "esp/sync/compress/compressor_factories.h"
#include "esp/sync/compress/kept_count.h"

namespace esp::sync {
namespace {

class TopK final : public Compressor {
 public:
  explicit TopK(const SpecArguments::FractionOrCount& share) : share_(share) {}

  void check(int64_t count) const override {
    Compressor::check(count);
    check_share("topk", share_, count);
  }
  size_t encoded_bytes(int64_t count, DType dtype) const override {
    return static_cast<size_t>(kept_count(share_, count)) * (4 + size_of(dtype));
  }
  Guarantee guarantee(int64_t count) const override {
    return {{}, count ? static_cast<double>(kept_count(share_, count)) / static_cast<double>(count) : 1};
  }
  size_t encode(std::byte* code, const void* x, int64_t count, DType dtype, const RandomKey&,
                const device::Stream& stream) const override {
    const int64_t k = kept_count(share_, count);
    kernel::top_k(code, code + 4 * k, x, count, k, dtype, stream);
    return encoded_bytes(count, dtype);
  }
  void decode(void* y, WriteMode into, std::span<const std::byte> code, int64_t count, DType dtype, const RandomKey&,
              const device::Stream& stream) const override {
    require_length(code, encoded_bytes(count, dtype), count);
    const int64_t k = kept_count(share_, count);
    if (!kernel::scatter_sparse(y, into, code.data(), code.data() + 4 * k, k, count, dtype, stream))
      fail_corrupt("indices must ascend and lie within the vector");
  }

 private:
  const SpecArguments::FractionOrCount share_;
};

}  // namespace

std::unique_ptr<Compressor> make_top_k(SpecArguments& arguments) {
  return std::make_unique<TopK>(arguments.fraction_or_count("kept values", 0.01));
}

}  // namespace esp::sync
