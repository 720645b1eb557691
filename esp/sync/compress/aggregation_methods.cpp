// Selects the aggregation method that sends the fewest bytes. Nothing is sent here.
#include <algorithm>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/sync/compress/aggregation.h"

namespace esp::sync {
namespace {

struct Row {
  std::string_view name;
  AggregationMethod method;
};
constexpr Row kMethods[] = {{"sum", AggregationMethod::sum},
                            {"gather", AggregationMethod::gather},
                            {"two_phase", AggregationMethod::two_phase}};

int64_t chunk_count(int64_t count, int size, int k) {
  return static_cast<int64_t>(comm::chunk_of(static_cast<size_t>(count), size, k).count);
}

}  // namespace

std::string_view name_of(AggregationMethod method) {
  return kMethods[static_cast<size_t>(method)].name;
}

AggregationMethod parse_aggregation_method(std::string_view name) {
  return find_row("aggregation method", kMethods, name).method;
}

size_t bytes_sent(AggregationMethod method, const Compressor& compressor, int64_t count, DType dtype, int size,
                  int rank) {
  const auto others = static_cast<size_t>(size - 1);
  if (others == 0) return 0;
  const size_t code = compressor.encoded_bytes(count, dtype);
  if (method == AggregationMethod::gather) return others * (code + (compressor.fixed_length() ? 0 : sizeof(int64_t)));
  if (method == AggregationMethod::sum) {  // sum is a reduce-scatter and an all-gather of the encoded values
    const size_t element = size_of(compressor.summable(dtype).value());
    const size_t own = comm::chunk_of(code / element, size, rank).count * element;
    return code - own + others * own;
  }
  size_t bytes = others * compressor.encoded_bytes(chunk_count(count, size, rank), dtype);
  for (int k = 0; k < size; ++k)
    if (k != rank) bytes += compressor.encoded_bytes(chunk_count(count, size, k), dtype);
  return bytes;
}

bool is_supported(AggregationMethod method, const Compressor& compressor, int64_t count, DType dtype, int size) {
  if (method == AggregationMethod::sum) return compressor.summable(dtype).has_value();
  if (method == AggregationMethod::gather) return true;
  if (!compressor.fixed_length()) return false;  // two_phase: the receiver must know the encoded length in advance
  try {
    // the last chunk is the shortest: throws if the compressor does not support its length
    compressor.check(chunk_count(count, size, size - 1));
  } catch (const UsageError&) {
    return false;
  }
  return true;
}

AggregationMethod cheapest_method(const Compressor& compressor, int64_t count, DType dtype, int size,
                                  const AllowedMethods& allowed) {
  AggregationMethod best = AggregationMethod::gather;
  size_t fewest = SIZE_MAX;
  for (AggregationMethod method : {AggregationMethod::sum, AggregationMethod::gather, AggregationMethod::two_phase}) {
    if (method == AggregationMethod::two_phase && !allowed.two_phase) continue;
    if (!is_supported(method, compressor, count, dtype, size)) continue;
    size_t most = 0;
    for (int rank = 0; rank < size; ++rank)
      most = std::max(most, bytes_sent(method, compressor, count, dtype, size, rank));
    if (most < fewest) {
      fewest = most;
      best = method;
    }
  }
  return best;
}

std::unique_ptr<Aggregation> make_whole_sum(AggregationMethod method, const AggregationSetup& setup);

std::unique_ptr<Aggregation> make_aggregation(AggregationMethod method, const AggregationSetup& setup) {
  const int size = setup.ranks ? setup.ranks->size() : 1;
  setup.compressor->check(setup.count);
  if (!is_supported(method, *setup.compressor, setup.count, setup.dtype, size)) {
    if (method == AggregationMethod::sum)
      throw UsageError(
          "aggregation sum: the encoded values of this compressor cannot be added. Use gather or two_phase, or a "
          "compressor such as randomk, fp16 or bf16.");
    throw UsageError(
        fmt::format("aggregation two_phase: {} ranks split a vector of {} values into chunks that are too short for "
                    "this compressor, or its encoded length varies. Use gather.",
                    size, setup.count));
  }
  return method == AggregationMethod::two_phase ? make_two_phase(setup) : make_whole_sum(method, setup);
}

}  // namespace esp::sync
