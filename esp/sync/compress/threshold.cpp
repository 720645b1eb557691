// Values above a threshold: their number (u32), their indices (u32, ascending), their values. The length depends on the
// values; ‖C(x) − x‖² ≤ nλ², which does not bound a fraction of ‖x‖².
#include <cstring>

#include "esp/kernel/sparse.h"
#include "esp/sync/compress/compressors_list.h"

namespace esp::sync {
namespace {

class Threshold final : public Compressor {
 public:
  explicit Threshold(double threshold) : threshold_(threshold) {}

  size_t code_bytes(int64_t count, DType dtype) const override { return bytes_for(count, dtype); }
  bool fixed_length() const override { return false; }
  Guarantee guarantee(int64_t) const override { return {}; }
  size_t encode(std::byte* code, const void* x, int64_t count, DType dtype, const RandomKey&,
                const device::Stream& stream) const override {
    // Values are written at the offset for n kept values, then moved behind the indices.
    std::byte *indices = code + 4, *values = indices + 4 * count;
    const int64_t kept = kernel::select_above(indices, values, x, count, threshold_, dtype, stream);
    std::memmove(indices + 4 * kept, values, static_cast<size_t>(kept) * size_of(dtype));
    const auto narrow = static_cast<uint32_t>(kept);
    std::memcpy(code, &narrow, 4);
    return bytes_for(kept, dtype);
  }
  void decode(void* y, WriteMode into, std::span<const std::byte> code, int64_t count, DType dtype, const RandomKey&,
              const device::Stream& stream) const override {
    if (code.size() < 4) damaged("truncated before the element count");
    uint32_t kept;
    std::memcpy(&kept, code.data(), 4);
    if (kept > count) damaged("element count exceeds the vector");
    require_length(code, bytes_for(kept, dtype), count);
    const std::byte* indices = code.data() + 4;
    if (!kernel::scatter_sparse(y, into, indices, indices + 4 * int64_t{kept}, kept, count, dtype, stream))
      damaged("indices that do not rise or lie past the end");
  }

 private:
  static size_t bytes_for(int64_t kept, DType dtype) { return 4 + static_cast<size_t>(kept) * (4 + size_of(dtype)); }
  const double threshold_;
};

}  // namespace

std::unique_ptr<Compressor> make_threshold(Arguments& arguments) {
  return std::make_unique<Threshold>(arguments.number("threshold", 0.001, 0, 3e38));
}

}  // namespace esp::sync
