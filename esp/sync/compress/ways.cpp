// Which way, by bytes: arithmetic alone.
#include <algorithm>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/sync/compress/aggregation.h"

namespace esp::sync {
namespace {

struct Row {
  std::string_view name;
  Way way;
};
constexpr Row kWays[] = {{"sum", Way::sum}, {"gather", Way::gather}, {"two_phase", Way::two_phase}};

int64_t chunk_count(int64_t count, int size, int k) {
  return static_cast<int64_t>(comm::chunk_of(static_cast<size_t>(count), size, k).count);
}

}  // namespace

std::string_view name_of(Way way) {
  return kWays[static_cast<size_t>(way)].name;
}

Way parse_way(std::string_view name) {
  return find_row("way to add up codes", kWays, name).way;
}

size_t bytes_sent(Way way, const Compressor& compressor, int64_t count, DType dtype, int size, int rank) {
  const auto others = static_cast<size_t>(size - 1);
  if (others == 0) return 0;
  const size_t code = compressor.code_bytes(count, dtype);
  if (way == Way::gather) return others * (code + (compressor.fixed_length() ? 0 : sizeof(int64_t)));
  if (way == Way::sum) {  // a reduce-scatter and an all-gather of chunks of the code
    const size_t element = size_of(compressor.summable(dtype).value());
    const size_t own = comm::chunk_of(code / element, size, rank).count * element;
    return code - own + others * own;
  }
  size_t bytes = others * compressor.code_bytes(chunk_count(count, size, rank), dtype);
  for (int k = 0; k < size; ++k)
    if (k != rank) bytes += compressor.code_bytes(chunk_count(count, size, k), dtype);
  return bytes;
}

bool can_go(Way way, const Compressor& compressor, int64_t count, DType dtype, int size) {
  if (way == Way::sum) return compressor.summable(dtype).has_value();
  if (way == Way::gather) return true;
  if (!compressor.fixed_length()) return false;  // who receives must know how much
  try {
    compressor.check(chunk_count(count, size, size - 1));  // the shortest
  } catch (const UsageError&) {
    return false;
  }
  return true;
}

Way cheapest_way(const Compressor& compressor, int64_t count, DType dtype, int size, const WaysAllowed& allowed) {
  Way best = Way::gather;
  size_t fewest = SIZE_MAX;
  for (Way way : {Way::sum, Way::gather, Way::two_phase}) {
    if (way == Way::two_phase && !allowed.two_phase) continue;
    if (!can_go(way, compressor, count, dtype, size)) continue;
    size_t most = 0;
    for (int rank = 0; rank < size; ++rank)
      most = std::max(most, bytes_sent(way, compressor, count, dtype, size, rank));
    if (most < fewest) {
      fewest = most;
      best = way;
    }
  }
  return best;
}

std::unique_ptr<Aggregation> make_whole_sum(Way way, const AggregationSetup& setup);

std::unique_ptr<Aggregation> make_aggregation(Way way, const AggregationSetup& setup) {
  const int size = setup.ranks ? setup.ranks->size() : 1;
  setup.compressor->check(setup.count);
  if (!can_go(way, *setup.compressor, setup.count, setup.dtype, size)) {
    if (way == Way::sum)
      throw UsageError(
          "codes of this compressor cannot be added: gather or two_phase would do, or randomk, fp16, bf16");
    throw UsageError(
        fmt::format("two_phase over {} ranks: the chunks of {} values are too short for this compressor, or its codes "
                    "have no fixed length; gather would do",
                    size, setup.count));
  }
  return way == Way::two_phase ? make_two_phase(setup) : make_whole_sum(way, setup);
}

}  // namespace esp::sync
