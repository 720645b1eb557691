// Whether the ranks that met are one run: every key of the run file but those of may_differ_by_rank (run_keys.h), what
// the data files hold (data_identity.h), and the version of the binary are compared among all ranks, whenever they
// meet and before they exchange anything else.
//
// Through the store alone, so that it does not depend on what is compared (transport, method, layout). Each rank leaves
// a digest; the first rank compares, and where digests differ reads the whole of one rank of each kind.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "esp/base/clock.h"
#include "esp/base/error.h"
#include "esp/net/world.h"
#include "esp/train/run_config.h"

namespace esp::train {

// Thrown on every rank with one message, before anything is written: one of them is enough to say it.
class CollectiveRefusal : public Error {
 public:
  using Error::Error;
};

struct RankIdentity {
  std::string version;                                    // of the binary
  std::vector<std::pair<std::string, std::string>> keys;  // that this run reads, with their values
  std::vector<std::string> files;                         // lines of data_identity
};
RankIdentity identity_of(const RunConfig& config, std::string_view version);

// What the run's identity consists of, for messages: «run file, data files and binary».
inline constexpr std::string_view kComparedByRanks = "run file, data files and binary";

// By kind: the ranks that have it, and what they have. Empty where there is one kind, else what differs and in whom;
// the exit code is that of the data where the files alone differ.
struct IdentityConflict {
  ExitCode code = ExitCode::done;
  std::string text;
};
IdentityConflict conflict_of(const std::vector<std::pair<std::vector<int>, RankIdentity>>& kinds);

// Collective. CollectiveRefusal on all ranks where they are not one run; CommError where one was lost meanwhile.
void check_same_run(const net::World& world, const RankIdentity& mine, Deadline deadline);

}  // namespace esp::train
