#include "esp/base/table.h"
#include "esp/sync/compress/compressors_list.h"

namespace esp::sync {
namespace {

constexpr CompressorRow kCompressors[] = {
    {"identity", "", "values unchanged", make_identity},
    {"fp16", "", "16 bits, ten of them mantissa; overflows above 65504", make_fp16},
    {"bf16", "", "16 bits with the range of fp32", make_bf16},
    {"int8", "[:BLOCK][:stochastic]", "integers to ±127 times a scale per block [256]", make_int8},
    {"int4", "[:BLOCK][:stochastic]", "integers to ±7 times a scale per block [128]", make_int4},
    {"random", "[:L0,L1,…]", "stochastic rounding to levels [4095 from −1 to 1]", make_levels},
    {"qsgd", "[:LEVELS][:BUCKET]", "stochastic rounding to levels [16] of the norm of a bucket [512]", make_qsgd},
    {"natural", "", "stochastic rounding to powers of two", make_natural},
    {"sign", "", "one bit per value, times the mean magnitude", make_sign},
    {"onebit", "", "one bit per value: the mean of the negative values or of the others", make_one_bit},
    {"topk", "[:FRACTION or :K]", "the largest magnitudes [0.01]", make_top_k},
    {"randomk", "[:FRACTION or :K][:unscaled]", "random coordinates [0.01], the same on all ranks", make_random_k},
    {"threshold", "[:LAMBDA]", "magnitudes above lambda [0.001]", make_threshold},
};

}  // namespace

std::span<const CompressorRow> compressors() {
  return kCompressors;
}

std::unique_ptr<Compressor> make_compressor(std::string_view spec) {
  const std::string_view name = spec.substr(0, spec.find(':'));
  const CompressorRow& row = find_row("compressor", kCompressors, name, {"powersgd"});
  Arguments arguments(name, spec.substr(name.size()), row.options);
  auto made = row.make(arguments);
  arguments.finish();
  return made;
}

}  // namespace esp::sync
