// User-supplied collective schedules as JSON text, for one collective, one number of ranks, and any count.
//
//   {
//     "espalier_schedule": 1,
//     "name": "two_swap",
//     "op": "all_reduce",        or broadcast reduce reduce_scatter all_gather all_to_all gather scatter
//     "size": 2,
//     "root": 0,                 broadcast, reduce, gather and scatter only
//     "split": [2],              how the full logical buffer is cut into units
//     "rounds": 2,
//     "ranks": [
//       {"scratch": [[1, 1]],    optional: areas of scratch memory, each for units [first, number]
//        "actions": [
//          {"round": 0, "do": "send", "to": 1, "at": ["input", 1, 1]},
//          {"round": 0, "do": "copy", "into": ["output", 0, 1], "from": ["input", 0, 1]},
//          {"round": 0, "do": "receive_reduce", "from": 1, "at": ["output", 0, 1]},
//          {"round": 1, "do": "send", "to": 1, "at": ["output", 0, 1]},
//          {"round": 1, "do": "receive", "from": 1, "at": ["output", 1, 1]}]},
//       …
//
// A region is [buffer, first unit, number of units]; for scratch ["scratch", area, first unit, number of units]. Units
// always refer to the full buffer, also where a rank's own buffer is one chunk of it. `split` [a, b, …] cuts the buffer
// into a chunks, each into b, and so on; each cut gives the first n mod k pieces one more element. Where rank k owns
// chunk k, split[0] is the size. "reduce" has "into" and "of", a list of regions summed in this order. Rounds follow
// comm/validate.h.
//
// The text is untrusted: sizes are bounded, unknown keys are rejected, and the schedule is proven correct before it is
// returned.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "esp/comm/schedule.h"

namespace esp::comm {

inline constexpr size_t kMaxScheduleBytes = size_t{16} << 20;
inline constexpr int kMaxScheduleSize = 1024;  // maximum number of ranks
inline constexpr int kMaxScheduleUnits = 65536;
inline constexpr int kMaxScheduleRounds = 1 << 20;
// limit for all ranks together; each source counts as one action
inline constexpr size_t kMaxScheduleActions = 1 << 20;

struct UnitRegion {
  Buffer buffer = Buffer::output;
  int area = 0;  // index of the scratch area; used only for scratch
  int first = 0, count = 0;
  bool operator==(const UnitRegion&) const = default;
};

struct UnitAction {
  ActionType type = ActionType::send;
  int round = 0, peer = -1;
  UnitRegion region;
  std::vector<UnitRegion> sources;
  bool operator==(const UnitAction&) const = default;
};

struct UnitArea {
  int first = 0, count = 0;
  bool operator==(const UnitArea&) const = default;
};

struct UnitSchedule {
  std::vector<UnitArea> scratch;
  std::vector<UnitAction> actions;
  bool operator==(const UnitSchedule&) const = default;
};

struct ScheduleFile {
  std::string name;
  Op op = Op::all_reduce;
  int size = 1, root = 0;
  std::vector<int> split;
  int num_rounds = 0;
  std::vector<UnitSchedule> ranks;
  bool operator==(const ScheduleFile&) const = default;
};

// `what` names the text in messages («schedule file ring.json»). Throws IoError if the text is malformed, UsageError if
// the schedule is incorrect.
ScheduleFile parse_schedule(std::string_view text, std::string_view what);
std::string write_schedule(const ScheduleFile& file);

// The schedule of rank spec.rank for spec.count elements. Throws UsageError if the file is for another op, size or
// root.
Schedule instantiate(const ScheduleFile& file, const CollectiveSpec& spec);
// The schedules of all ranks, validated for this count.
std::vector<Schedule> instantiate_validated(const ScheduleFile& file, const CollectiveSpec& spec);

// Exports a built-in algorithm as a file that is valid for any count. Throws UsageError if one of its messages contains
// units out of order (Bruck), which the format cannot express.
ScheduleFile export_schedule(const AlgorithmRow& row, const CollectiveSpec& spec);

}  // namespace esp::comm
