// Compressors identity, fp16 and bf16. identity leaves values unchanged; fp16 and bf16 round them to 16 bits (to
// nearest even). Encoded vectors of the same type can be added.
#include "esp/kernel/difference.h"
#include "esp/kernel/elementwise.h"
#include "esp/sync/compress/compressor_factories.h"
#include "esp/sync/compress/scratch.h"

namespace esp::sync {
namespace {

class Cast final : public Compressor {
 public:
  // If `type` is nullopt, values keep their type. `unit` is the unit roundoff: the largest relative error of a normal
  // number.
  Cast(std::optional<DType> type, double unit) : type_(type), unit_(unit) {}

  size_t encoded_bytes(int64_t count, DType dtype) const override {
    return static_cast<size_t>(count) * size_of(type_.value_or(dtype));
  }
  std::optional<DType> summable(DType dtype) const override { return type_.value_or(dtype); }
  Guarantee guarantee(int64_t) const override {
    if (!type_) return {0.0, 1.0};
    return {{}, 1 - unit_ * unit_};
  }

  size_t encode(std::byte* code, const void* x, int64_t count, DType dtype, const RandomKey&,
                const device::Stream& stream) const override {
    kernel::cast(code, type_.value_or(dtype), x, dtype, count, stream);
    return encoded_bytes(count, dtype);
  }
  void decode(void* y, WriteMode into, std::span<const std::byte> code, int64_t count, DType dtype, const RandomKey&,
              const device::Stream& stream) const override {
    require_length(code, encoded_bytes(count, dtype), count);
    const DType type = type_.value_or(dtype);
    if (into == WriteMode::overwrite) return kernel::cast(y, dtype, code.data(), type, count, stream);
    if (type == dtype) return kernel::write_values(y, into, code.data(), count, dtype, stream);
    void* wide =
        scratch<std::max_align_t, Cast>(static_cast<size_t>(count) * size_of(dtype) / sizeof(std::max_align_t) + 1);
    kernel::cast(wide, dtype, code.data(), type, count, stream);
    kernel::write_values(y, into, wide, count, dtype, stream);
  }

 private:
  const std::optional<DType> type_;
  const double unit_;
};

}  // namespace

std::unique_ptr<Compressor> make_identity(SpecArguments&) {
  return std::make_unique<Cast>(std::nullopt, 0);
}
std::unique_ptr<Compressor> make_fp16(SpecArguments&) {
  return std::make_unique<Cast>(DType::f16, 0x1p-11);
}
std::unique_ptr<Compressor> make_bf16(SpecArguments&) {
  return std::make_unique<Cast>(DType::bf16, 0x1p-8);
}

}  // namespace esp::sync
