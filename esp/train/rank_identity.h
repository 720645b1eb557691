// Checks that all ranks belong to the same run. The check compares the run file (except keys of may_differ_by_rank,
// run_keys.h), the content of the data files (data_identity.h) and the version of the binary. It runs each time the
// ranks have connected, before any other exchange.
//
// The check uses only the key-value store, so it works even if ranks have different transports, methods or layouts.
// Each rank writes a digest of its identity. Rank 0 compares the digests. If they differ, rank 0 reads the full
// identity of one rank per digest.
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

// An error that is thrown on every rank with the same message, before anything is written. Therefore one rank can print
// it for all.
class CollectiveError : public Error {
 public:
  using Error::Error;
};

struct RankIdentity {
  std::string version;                                    // version of this binary
  std::vector<std::pair<std::string, std::string>> keys;  // keys that the run reads, with their values
  std::vector<std::string> files;                         // the lines that data_identity() returns
};
RankIdentity rank_identity(const RunConfig& config, std::string_view version);

// What an identity consists of, as text for messages.
inline constexpr std::string_view kComparedByRanks = "run file, data files and binary";

// Compares identities. `kinds` has each distinct identity once, with the ranks that have it. If there is only one,
// `text` is empty; otherwise it says what differs on which ranks. `code` is ExitCode::files if only data files differ.
struct IdentityConflict {
  ExitCode code = ExitCode::done;
  std::string text;
};
IdentityConflict find_identity_conflict(const std::vector<std::pair<std::vector<int>, RankIdentity>>& kinds);

// Compares the identities of all ranks. Collective. CollectiveError on all ranks if identities differ; CommError if a
// rank is lost meanwhile.
void check_same_run(const net::World& world, const RankIdentity& mine, Deadline deadline);

}  // namespace esp::train
