#include "esp/plan/search/space.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "esp/base/error.h"
#include "esp/base/table.h"

namespace esp::plan {
namespace {

constexpr int64_t kMaxMicroBatch = 32;  // maximum micro-batch on a GPU, sequences; on a CPU small models need more
constexpr int64_t kMaxMicroBatchCpu = 1024;
// minimum tokens of a sequence per context rank on a GPU; fewer tokens do not fill a GEMM tile
constexpr int64_t kMinContextTokens = 256;
constexpr int kInterleaves[] = {2, 3, 4, 6, 8, 12, 16};
constexpr std::string_view kRecomputes[] = {"none", "selective", "full"};
constexpr std::string_view kOffloads[] = {"none", "host", "file"};

std::vector<int> divisors(int64_t n, int64_t most) {
  std::vector<int> found;
  for (int64_t i = 1; i <= std::min(n, most); ++i)
    if (n % i == 0) found.push_back(static_cast<int>(i));
  return found;
}

// Numbers up to `most` that divide at least one of the given numbers.
std::vector<int> divisors_of_any(const std::vector<int>& numbers, int64_t most) {
  std::vector<int> all;
  for (const int n : numbers) {
    const std::vector<int> some = divisors(n, most);
    all.insert(all.end(), some.begin(), some.end());
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    words.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return words;
}

template <typename T, typename Name>
void keep_named(std::string_view axis, std::vector<T>& values, const std::vector<std::string>& requested, Name&& name) {
  std::vector<std::string> names;
  for (const T& one : values) names.push_back(name(one));
  std::vector<T> kept;
  for (const std::string& given : requested) {
    const auto at = std::find(names.begin(), names.end(), given);
    if (at == names.end())
      throw UsageError(fmt::format("--axis {}: got {}; expected {}", axis, given, fmt::join(names, ", ")));
    kept.push_back(values[static_cast<size_t>(at - names.begin())]);
  }
  if (kept.empty())
    throw UsageError(
        fmt::format("--axis {}: got no values; expected at least one of {}", axis, fmt::join(names, ", ")));
  values = std::move(kept);
}

}  // namespace

std::string name_of(RecomputePolicy recompute) {
  return std::string(kRecomputes[static_cast<size_t>(recompute)]);
}
std::string name_of(OffloadTarget offload) {
  return std::string(kOffloads[static_cast<size_t>(offload)]);
}
std::string name_of(const ScheduleChoice& schedule) {
  return schedule.interleave == 1 ? schedule.name : fmt::format("{}:{}", schedule.name, schedule.interleave);
}

double SearchSpace::size() const {
  double product = 1;
  for (const size_t n :
       {gpus.size(), tp.size(), cp.size(), pp.size(), ep.size(), zero.size(), micro_batch.size(), sequence.size(),
        context.size(), offload.size(), recompute.size(), schedule.size(), division.size()})
    product *= static_cast<double>(n);
  return product;
}

Cluster resize_cluster(const Cluster& cluster, int gpus) {
  Cluster scaled = cluster;
  scaled.per_node = std::min(cluster.per_node, gpus);
  scaled.num_nodes = (gpus + scaled.per_node - 1) / scaled.per_node;
  scaled.domain = std::min(cluster.domain, scaled.size());
  return scaled;
}

SearchSpace full_search_space(const ModelShape& shape, const Cluster& cluster, const Policy& base,
                              const std::vector<int>& gpus) {
  if (gpus.empty()) throw UsageError("--gpus: got no value; expected a number of devices");
  for (const int n : gpus)
    if (n < 1 || n > 1 << 20) throw UsageError(fmt::format("--gpus: got {}; expected 1 to {}", n, 1 << 20));
  if (base.global_batch < 1)
    throw UsageError(fmt::format("--global-batch: got {}; expected at least 1 sequence", base.global_batch));
  const bool cpu = cluster.processor.kind == "cpu", own = base.software == "espalier";
  SearchSpace space;
  space.base = base;
  space.gpus = gpus;
  space.tp = divisors_of_any(gpus, std::max<int64_t>(1, shape.heads));
  std::erase_if(space.tp, [&](int tp) { return shape.heads > 0 && shape.heads % tp != 0; });
  space.cp = divisors_of_any(gpus, std::max<int64_t>(1, cpu ? shape.seq / 2 : shape.seq / kMinContextTokens));
  space.pp = divisors_of_any(gpus, std::max<int64_t>(1, shape.layers));
  space.ep = shape.experts > 0 ? divisors(shape.experts, shape.experts) : std::vector<int>{1};
  for (const int one : divisors(base.global_batch, cpu ? kMaxMicroBatchCpu : kMaxMicroBatch))
    space.micro_batch.push_back(one);
  space.sequence = {0, 1};
  space.context = {"ring", "ulysses"};
  space.zero = {0, 1, 2, 3};
  space.offload = {OffloadTarget::none};
  if (cluster.host.bandwidth > 0) space.offload.push_back(OffloadTarget::host);
  space.recompute = {RecomputePolicy::none, RecomputePolicy::selective, RecomputePolicy::full};
  space.schedule = {{"1f1b", 1}, {"gpipe", 1}};
  for (const int v : kInterleaves)
    if (2 * v <= shape.layers) space.schedule.push_back({"interleaved", v});
  space.schedule.push_back({"zb-h1", 1});
  space.division = {0, 1};
  if (own) {  // Espalier always balances stages by cost, so the axis has one value
    space.division = {0};
  } else {
    space.context.push_back("allgather");
    for (const char* name : {"zb-2p", "zb-v", "v-half", "v-min", "dualpipe"}) space.schedule.push_back({name, 1});
  }
  return space;
}

void restrict_axis(SearchSpace& space, std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos)
    throw UsageError(fmt::format("--axis: got {}; expected name=value,value, for example tp=1,2,4", text));
  const std::string_view axis = text.substr(0, equals);
  const std::vector<std::string> requested = words_of(text.substr(equals + 1));
  const auto number = [](auto n) { return fmt::format("{}", n); };
  const auto word = [](const std::string& s) { return s; };
  const auto yes_no = [](int n) { return std::string(n ? "true" : "false"); };
  const auto division = [](int n) { return std::string(n ? "balanced" : "equal"); };
  const auto named = [](const auto& one) { return name_of(one); };
  struct Row {
    std::string_view name;
    std::vector<int>* numbers;
  };
  const Row rows[] = {{"gpus", &space.gpus}, {"tp", &space.tp}, {"cp", &space.cp},
                      {"pp", &space.pp},     {"ep", &space.ep}, {"zero", &space.zero}};
  for (const Row& row : rows)
    if (row.name == axis) return keep_named(axis, *row.numbers, requested, number);
  if (axis == "micro_batch") return keep_named(axis, space.micro_batch, requested, number);
  if (axis == "sequence") return keep_named(axis, space.sequence, requested, yes_no);
  if (axis == "context") return keep_named(axis, space.context, requested, word);
  if (axis == "offload") return keep_named(axis, space.offload, requested, named);
  if (axis == "recompute") return keep_named(axis, space.recompute, requested, named);
  if (axis == "schedule") return keep_named(axis, space.schedule, requested, named);
  if (axis == "division") return keep_named(axis, space.division, requested, division);
  unknown_name("axis", axis,
               {"gpus", "tp", "cp", "pp", "ep", "zero", "micro_batch", "sequence", "context", "offload", "recompute",
                "schedule", "division"});
}

}  // namespace esp::plan
