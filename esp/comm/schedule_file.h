// Schedules that users bring, as JSON text, for one collective and one number of ranks, and any count.
//
//   {
//     "espalier_schedule": 1,
//     "name": "two_swap",
//     "op": "all_reduce",                 broadcast reduce all_reduce reduce_scatter all_gather all_to_all gather
//     scatter "size": 2, "root": 0,                          broadcast, reduce, gather and scatter only: the root this
//     schedule serves "split": [2],                       how the full logical buffer is cut in units "rounds": 2,
//     "ranks": [
//       {"scratch": [[1, 1]],             areas of scratch memory, each for units [first, number]; may be left out
//        "actions": [
//          {"round": 0, "do": "send", "to": 1, "at": ["input", 1, 1]},
//          {"round": 0, "do": "copy", "into": ["output", 0, 1], "from": ["input", 0, 1]},
//          {"round": 0, "do": "receive_reduce", "from": 1, "at": ["output", 0, 1]},
//          {"round": 1, "do": "send", "to": 1, "at": ["output", 0, 1]},
//          {"round": 1, "do": "receive", "from": 1, "at": ["output", 1, 1]}]},
//       …
//
// A region is [buffer, first unit, number of units]; of scratch ["scratch", area, first unit, number of units]. Units
// are always those of the full buffer, also where a rank's own buffer is one chunk of it. `split` [a, b, …] cuts the
// buffer in a chunks, each of them in b, and so on, every cut giving the first n mod k pieces one element more; where
// rank k owns chunk k, split[0] is the size. "reduce" has "into" and "of", a list of regions summed in this order.
// Rounds follow comm/validate.h.
//
// The text is untrusted: sizes are bounded, unknown keys refused, and the schedule proven before it is returned.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "esp/comm/schedule.h"

namespace esp::comm {

inline constexpr size_t kMaxScheduleBytes = size_t{16} << 20;
inline constexpr int kMaxScheduleSize = 1024;  // ranks
inline constexpr int kMaxScheduleUnits = 65536;
inline constexpr int kMaxScheduleRounds = 1 << 20;
inline constexpr size_t kMaxScheduleActions = 1 << 20;  // of all ranks, each source counted as one

struct UnitRegion {
  Buffer buffer = Buffer::output;
  int area = 0;  // scratch only
  int first = 0, count = 0;
  bool operator==(const UnitRegion&) const = default;
};

struct UnitAction {
  Act act = Act::send;
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

// `what` names the text in messages («schedule file ring.json»). IoError for text that is no schedule, UsageError for a
// schedule that is not correct.
ScheduleFile parse_schedule(std::string_view text, std::string_view what);
std::string write_schedule(const ScheduleFile& file);

// What problem.rank does for problem.count. UsageError when the file is for another op, size or root.
Schedule instantiate(const ScheduleFile& file, const Problem& problem);
// For all ranks, and proven for this very count.
std::vector<Schedule> instantiate_proven(const ScheduleFile& file, const Problem& problem);

// A built-in algorithm as a file, problem.count aside. UsageError where it moves units out of order in one message
// (Bruck's, for one), which a file cannot say.
ScheduleFile export_schedule(const AlgorithmRow& row, const Problem& problem);

}  // namespace esp::comm
