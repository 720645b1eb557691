#include "esp/base/table.h"
#include "esp/sync/compress/compressor_factories.h"

namespace esp::sync {
namespace {

constexpr CompressorRow kCompressors[] = {
    {"identity", "", "values unchanged", make_identity},
    {"fp16", "", "half precision with 10 mantissa bits; overflows above 65504", make_fp16},
    {"bf16", "", "16 bits with the range of fp32", make_bf16},
    {"int8", "[:BLOCK][:stochastic]", "integers from −127 to 127 times one scale per block [256 values]", make_int8},
    {"int4", "[:BLOCK][:stochastic]", "integers from −7 to 7 times one scale per block [128 values]", make_int4},
    {"random", "[:L0,L1,…]", "stochastic rounding to given levels [4095 levels from −1 to 1]", make_levels},
    {"qsgd", "[:LEVELS][:BUCKET]",
     "stochastic rounding to multiples of 1/LEVELS [16] of the norm of a bucket [512 values]", make_qsgd},
    {"natural", "", "stochastic rounding to powers of two", make_natural},
    {"sign", "", "the sign of every value, times the mean magnitude", make_sign},
    {"onebit", "", "one bit per value: the mean of the negative values or of the others", make_one_bit},
    {"topk", "[:FRACTION or :K]", "keeps the values with the largest magnitudes [0.01]", make_top_k},
    {"randomk", "[:FRACTION or :K][:unscaled]", "keeps random coordinates [0.01], the same on all ranks",
     make_random_k},
    {"threshold", "[:LAMBDA]", "keeps the values with magnitudes above lambda [0.001]", make_threshold},
};

}  // namespace

std::span<const CompressorRow> compressors() {
  return kCompressors;
}

std::unique_ptr<Compressor> make_compressor(std::string_view spec) {
  const std::string_view name = spec.substr(0, spec.find(':'));
  const CompressorRow& row = find_row("compressor", kCompressors, name, {"powersgd"});
  SpecArguments arguments(name, spec.substr(name.size()), row.options);
  auto made = row.make(arguments);
  arguments.finish();
  return made;
}

}  // namespace esp::sync
