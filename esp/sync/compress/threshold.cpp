// Compressor threshold: keeps the values with a magnitude above λ. Layout: their number (u32), their indices (u32,
// ascending), their values. The encoded length depends on the values. The error bound is ‖C(x) − x‖² ≤ nλ², which is
// not relative to ‖x‖².
#include <cstring>

#include "esp/kernel/sparse.h"
#include "esp/sync/compress/compressor_factories.h"

namespace esp::sync {
namespace {

class Threshold final : public Compressor {
 public:
  explicit Threshold(double threshold) : threshold_(threshold) {}

  size_t encoded_bytes(int64_t count, DType dtype) const override { return bytes_for(count, dtype); }
  bool fixed_length() const override { return false; }
  Guarantee guarantee(int64_t) const override { return {}; }
  size_t encode(std::byte* code, const void* x, int64_t count, DType dtype, const RandomKey&,
                const device::Stream& stream) const override {
    // The number of kept values is not known yet: values are written where they would start if all n were kept, then
    // moved to directly after the indices.
    std::byte *indices = code + 4, *values = indices + 4 * count;
    const int64_t kept = kernel::select_above(indices, values, x, count, threshold_, dtype, stream);
    std::memmove(indices + 4 * kept, values, static_cast<size_t>(kept) * size_of(dtype));
    const auto narrow = static_cast<uint32_t>(kept);
    std::memcpy(code, &narrow, 4);
    return bytes_for(kept, dtype);
  }
  void decode(void* y, WriteMode into, std::span<const std::byte> code, int64_t count, DType dtype, const RandomKey&,
              const device::Stream& stream) const override {
    if (code.size() < 4) fail_corrupt("truncated before the element count");
    uint32_t kept;
    std::memcpy(&kept, code.data(), 4);
    if (kept > count) fail_corrupt("element count exceeds the length of the vector");
    require_length(code, bytes_for(kept, dtype), count);
    const std::byte* indices = code.data() + 4;
    if (!kernel::scatter_sparse(y, into, indices, indices + 4 * int64_t{kept}, kept, count, dtype, stream))
      fail_corrupt("indices must ascend and lie within the vector");
  }

 private:
  static size_t bytes_for(int64_t kept, DType dtype) { return 4 + static_cast<size_t>(kept) * (4 + size_of(dtype)); }
  const double threshold_;
};

}  // namespace

std::unique_ptr<Compressor> make_threshold(SpecArguments& arguments) {
  return std::make_unique<Threshold>(arguments.number("threshold", 0.001, 0, 3e38));
}

}  // namespace esp::sync
