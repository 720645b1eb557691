// Exports a built-in algorithm as a schedule file. Positions in a schedule file are unit numbers. The algorithm is
// built for one element per unit, so element offsets are unit numbers. A file names scratch memory by the units it
// holds, so the export tracks which units each scratch element holds.
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/comm/algo/double_tree.h"
#include "esp/comm/algo/schedule_builder.h"
#include "esp/comm/algo/segments.h"
#include "esp/comm/schedule_interpreter.h"
#include "esp/comm/schedule_units.h"
#include "esp/comm/validate.h"

namespace esp::comm {
namespace {

// The split of the buffer that an algorithm uses. If it uses two splits that do not nest (the mesh), this is their
// finest common split; for a count that is not divisible, pieces may then differ from the built-in algorithm by one
// element.
std::vector<int> natural_split(const AlgorithmRow& row, const CollectiveSpec& spec) {
  int n = spec.size;
  if (is_chunked(row.op)) return {n};
  std::string_view name = row.name;
  if (name == "ring" || name == "ring_shift0" || name == "direct" || name == "scatter_allgather") return {n};
  if (name == "ring_bidirectional") return {2, n};
  if (name == "halving_doubling") return {1 << floor_log2(n)};
  if (name == "double_tree") return {2, double_tree_segments(spec)};
  if (name == "ring_pipelined") return {pipeline_segments(spec)};
  if (name == "torus") return grid_for(spec, 0).dims;
  if (name == "torus2d") return grid_for(spec, 2).dims;
  if (name == "torus3d") return grid_for(spec, 3).dims;
  if (name == "hierarchical") return {grid_for(spec, 2).dims[1]};
  if (name == "mesh2d") return {std::lcm(grid_for(spec, 2).dims[0], grid_for(spec, 2).dims[1])};
  return {1};  // all other algorithms move the whole buffer at once
}

class Exporter {
 public:
  Exporter(const AlgorithmRow& row, const CollectiveSpec& spec) {
    file_.name = fmt::format("{}_{}", name_of(row.op), row.name);
    file_.op = row.op;
    file_.size = spec.size;
    file_.root = is_rooted(row.op) ? spec.root : 0;
    file_.split = natural_split(row, spec);
    CollectiveSpec unit_spec = spec;
    unit_spec.op = row.op;
    unit_spec.count = static_cast<size_t>(num_units(file_.split));
    // Pipelined algorithms choose the number of segments from the length. A file has no length, so its split fixes the
    // number.
    if (row.name == "double_tree" || row.name == "ring_pipelined") unit_spec.segments = file_.split.back();
    schedules_ = build_all(row, specs_for_all_ranks(unit_spec));
    file_.num_rounds = schedules_[0].num_rounds;
    file_.ranks.resize(schedules_.size());
    areas_.resize(schedules_.size());
    for (const Schedule& schedule : schedules_) scratch_.emplace_back(schedule.scratch_count, -1);
  }

  ScheduleFile run() {
    ScheduleInterpreter<std::vector<int>> order(schedules_);
    order.run(
        file_.num_rounds,
        [&](int rank, size_t i) {
          add(rank, i);
          return units(rank, action(rank, i).region);
        },
        [&](int rank, size_t i, std::vector<int>& message) {
          note(rank, action(rank, i).region, message);
          add(rank, i);
        },
        [&](int rank, size_t i) {
          note(rank, action(rank, i).region, units(rank, action(rank, i).sources[0]));
          add(rank, i);
        });
    validate_for_sample_counts(file_);
    return std::move(file_);
  }

 private:
  const Action& action(int rank, size_t i) const { return schedules_[static_cast<size_t>(rank)].actions[i]; }

  // The numbers of the units that a region contains.
  std::vector<int> units(int rank, const BufferRegion& region) const {
    std::vector<int> held(region.count);
    for (size_t i = 0; i < region.count; ++i)
      held[i] = region.buffer == Buffer::scratch
                    ? scratch_[static_cast<size_t>(rank)][region.offset + i]
                    : static_cast<int>(region.offset + i) + area_of(file_, rank, region.buffer).first;
    return held;
  }

  void note(int rank, const BufferRegion& region, const std::vector<int>& held) {
    if (region.buffer != Buffer::scratch) return;
    for (size_t i = 0; i < held.size(); ++i) scratch_[static_cast<size_t>(rank)][region.offset + i] = held[i];
  }

  // Scratch regions share an area if they have the same distance between element offset and unit number.
  UnitRegion region_of(int rank, const BufferRegion& region) {
    std::vector<int> held = units(rank, region);
    for (size_t i = 1; i < held.size(); ++i)
      if (held[i] != held[0] + static_cast<int>(i))
        throw UsageError(
            fmt::format("{} cannot be written as a schedule file: a message contains unit {} before unit {}; "
                        "units must be consecutive",
                        file_.name, held[i - 1], held[i]));
    UnitRegion result{region.buffer, 0, held[0], static_cast<int>(held.size())};
    if (region.buffer != Buffer::scratch) return result;
    auto& scratch = file_.ranks[static_cast<size_t>(rank)].scratch;
    auto [at, fresh] = areas_[static_cast<size_t>(rank)].try_emplace(static_cast<int64_t>(region.offset) - held[0],
                                                                     static_cast<int>(scratch.size()));
    result.area = at->second;
    if (fresh) {
      scratch.push_back({result.first, result.count});
    } else {
      UnitArea& area = scratch[static_cast<size_t>(result.area)];
      int end = std::max(area.first + area.count, result.first + result.count);
      area.first = std::min(area.first, result.first);
      area.count = end - area.first;
    }
    return result;
  }

  void add(int rank, size_t i) {
    const Action& step = action(rank, i);
    UnitAction unit{step.type, step.round, step.peer, region_of(rank, step.region), {}};
    for (const BufferRegion& source : step.sources) unit.sources.push_back(region_of(rank, source));
    file_.ranks[static_cast<size_t>(rank)].actions.push_back(std::move(unit));
  }

  ScheduleFile file_;
  std::vector<Schedule> schedules_;
  std::vector<std::vector<int>> scratch_;      // [rank][element]: the unit stored there
  std::vector<std::map<int64_t, int>> areas_;  // [rank]: area number by distance (element offset minus unit number)
};

}  // namespace

ScheduleFile export_schedule(const AlgorithmRow& row, const CollectiveSpec& spec) {
  if (!has_schedule_file_format(row.op))
    throw UsageError(fmt::format("{}: schedule files do not support this collective", name_of(row.op)));
  if (spec.size > kMaxScheduleSize)
    throw UsageError(fmt::format("schedule file: got {} ranks; expected at most {}", spec.size, kMaxScheduleSize));
  CollectiveSpec checked = spec;
  checked.op = row.op;
  checked.count = 0;
  if (std::string wrong = row.applies ? row.applies(checked) : ""; !wrong.empty())
    throw UsageError(fmt::format("{} {} {}", name_of(row.op), row.name, wrong));
  return Exporter(row, spec).run();
}

}  // namespace esp::comm
