// The K largest magnitudes, ties to the lower index: K indices (u32, ascending), then K values.
#include "esp/kernel/sparse.h"
#include "esp/sync/compress/compressors_list.h"
#include "esp/sync/compress/share.h"

namespace esp::sync {
namespace {

class TopK final : public Compressor {
 public:
  explicit TopK(const Arguments::Share& share) : share_(share) {}

  void check(int64_t count) const override {
    Compressor::check(count);
    check_share("topk", share_, count);
  }
  size_t code_bytes(int64_t count, DType dtype) const override {
    return static_cast<size_t>(kept_of(share_, count)) * (4 + size_of(dtype));
  }
  Guarantee guarantee(int64_t count) const override {
    return {{}, count ? static_cast<double>(kept_of(share_, count)) / static_cast<double>(count) : 1};
  }
  size_t encode(std::byte* code, const void* x, int64_t count, DType dtype, const RandomKey&,
                const device::Stream& stream) const override {
    const int64_t k = kept_of(share_, count);
    kernel::top_k(code, code + 4 * k, x, count, k, dtype, stream);
    return code_bytes(count, dtype);
  }
  void decode(void* y, WriteMode into, std::span<const std::byte> code, int64_t count, DType dtype, const RandomKey&,
              const device::Stream& stream) const override {
    require_length(code, code_bytes(count, dtype), count);
    const int64_t k = kept_of(share_, count);
    if (!kernel::scatter_sparse(y, into, code.data(), code.data() + 4 * k, k, count, dtype, stream))
      damaged("indices that do not rise or lie past the end");
  }

 private:
  const Arguments::Share share_;
};

}  // namespace

std::unique_ptr<Compressor> make_top_k(Arguments& arguments) {
  return std::make_unique<TopK>(arguments.share("how many", 0.01));
}

}  // namespace esp::sync
