#include "esp/comm/schedule_units.h"

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/comm/validate.h"

namespace esp::comm {

bool has_schedule_file_format(Op op) {
  return op == Op::all_reduce || op == Op::broadcast || op == Op::reduce || is_chunked(op);
}

bool is_rooted(Op op) {
  return op == Op::broadcast || op == Op::reduce || op == Op::gather || op == Op::scatter;
}

bool is_chunked(Op op) {
  return op == Op::reduce_scatter || op == Op::all_gather || op == Op::gather || op == Op::scatter ||
         op == Op::all_to_all;
}

int num_units(std::span<const int> split) {
  int units = 1;
  for (int factor : split) units *= factor;
  return units;
}

size_t unit_offset(std::span<const int> split, size_t count, int unit) {
  int below = num_units(split);
  if (unit == below) return count;
  size_t offset = 0;
  for (int factor : split) {
    below /= factor;
    Chunk chunk = chunk_of(count, factor, unit / below);
    unit %= below;
    offset += chunk.offset;
    count = chunk.count;
  }
  return offset;
}

UnitArea area_of(const ScheduleFile& file, int rank, Buffer buffer) {
  int units = num_units(file.split), per_chunk = units / file.split[0];
  UnitArea all{0, units}, none{0, 0}, own{rank * per_chunk, per_chunk};
  bool root = rank == file.root;
  if (buffer == Buffer::input) switch (file.op) {
      case Op::broadcast:
      case Op::scatter:
        return root ? all : none;
      case Op::all_gather:
      case Op::gather:
        return own;
      default:
        return all;
    }
  if (buffer == Buffer::output) switch (file.op) {
      case Op::reduce:
      case Op::gather:
        return root ? all : none;
      case Op::reduce_scatter:
      case Op::scatter:
        return own;
      default:
        return all;
    }
  return none;
}

Schedule instantiate(const ScheduleFile& file, const CollectiveSpec& spec) {
  if (spec.op != file.op || spec.size != file.size || (is_rooted(file.op) && spec.root != file.root))
    throw UsageError(fmt::format("schedule \"{}\" is for {} of {} ranks{}, not for {} of {} ranks{}", file.name,
                                 name_of(file.op), file.size,
                                 is_rooted(file.op) ? fmt::format(" with root {}", file.root) : "", name_of(spec.op),
                                 spec.size, is_rooted(spec.op) ? fmt::format(" with root {}", spec.root) : ""));
  if (file.op == Op::all_to_all && spec.count % static_cast<size_t>(file.size) != 0)
    throw UsageError(
        fmt::format("all_to_all: count: got {}; expected a multiple of the {} ranks", spec.count, file.size));
  const UnitSchedule& units = file.ranks[static_cast<size_t>(spec.rank)];
  auto at = [&](int unit) { return unit_offset(file.split, spec.count, unit); };
  Schedule schedule;
  schedule.num_rounds = file.num_rounds;
  std::vector<size_t> bases;
  for (const UnitArea& area : units.scratch) {
    bases.push_back(schedule.scratch_count);
    schedule.scratch_count += at(area.first + area.count) - at(area.first);
  }
  auto region_of = [&](const UnitRegion& region) {
    bool scratch = region.buffer == Buffer::scratch;
    auto area = static_cast<size_t>(region.area);
    int start = scratch ? units.scratch[area].first : area_of(file, spec.rank, region.buffer).first;
    size_t offset = at(region.first) - at(start) + (scratch ? bases[area] : 0);
    return BufferRegion{region.buffer, offset, at(region.first + region.count) - at(region.first)};
  };
  for (const UnitAction& step : units.actions) {
    Action action{step.type, step.round, step.peer, region_of(step.region), {}};
    for (const UnitRegion& source : step.sources) action.sources.push_back(region_of(source));
    // If there are fewer elements than units, some units are empty; actions on them are dropped.
    if (action.region.count > 0) schedule.actions.push_back(std::move(action));
  }
  return schedule;
}

std::vector<Schedule> instantiate_validated(const ScheduleFile& file, const CollectiveSpec& spec) {
  std::vector<CollectiveSpec> specs = specs_for_all_ranks(spec);
  std::vector<Schedule> schedules;
  for (const CollectiveSpec& mine : specs) schedules.push_back(instantiate(file, mine));
  validate(specs, schedules);
  return schedules;
}

void validate_for_sample_counts(const ScheduleFile& file) {
  auto units = static_cast<size_t>(num_units(file.split)), size = static_cast<size_t>(file.size);
  std::vector<size_t> counts = {units, 2 * units + units / 2, 3 * units + 1};
  // In all_to_all the count must be divisible by the size, so all blocks are equal. The units within a block may still
  // differ.
  if (file.op == Op::all_to_all) counts = {units, units + size, 2 * units};
  for (size_t count : counts) {
    CollectiveSpec spec;
    spec.op = file.op;
    spec.size = file.size;
    spec.root = file.root;
    spec.count = count;
    instantiate_validated(file, spec);
  }
}

}  // namespace esp::comm
