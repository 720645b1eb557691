// Which options of compression go together: words alone, before anything is made.
#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/sync/compress/compression.h"
#include "esp/sync/compress/one_bit_adam.h"
#include "esp/sync/compress/power_sgd.h"

namespace esp::sync {
namespace {

constexpr int64_t kSomeVector = 1 << 20;  // long enough for shares to be what they are

[[noreturn]] void refuse(const Options& o, std::string_view why) {
  throw UsageError(fmt::format("sync.compress = \"{}\" with sync.feedback = \"{}\" and sync.method = \"{}\": {}",
                               o.compress, o.feedback, o.method, why));
}

void check_all_reduce(const Options& o) {
  if (o.buckets != "fixed")
    refuse(o, fmt::format("errors are of buckets that stay as they are: sync.buckets = \"fixed\" is wanted, this is {}",
                          o.buckets));
}

void check_zero(const Options& o, bool both_ways) {
  if (power_sgd_rank(o.compress) > 0)
    refuse(o, "its products are whole on every rank, which shards would throw away: take allreduce, or another one");
  if (both_ways)
    refuse(o, "each rank keeps the sum of its chunk, and what comes back are values: take ef, ef21 or none");
  if (o.group != 0) refuse(o, "sums of a group's codes would travel on as they are: sync.group = 0 is wanted");
  if (o.accumulate == "reduced")
    refuse(o, "one code a step: micro-batches are added up before (sync.accumulate = \"local\")");
}

void check_servers(const Options& o, const Compressor* compressor, bool both_ways) {
  if (!compressor) refuse(o, "its products are added up by all ranks together, not by servers: take allreduce");
  if (!compressor->fixed_length()) refuse(o, "servers must know the length of a push: take topk");
  if (o.ps.exchange != "messages") refuse(o, "a reduce adds values, not codes: sync.exchange = \"messages\" is wanted");
  if (both_ways && o.ps.update != "worker")
    refuse(o, "its second compression is of sums, and these servers send values: take ef, or sync.update = \"worker\"");
}

void check_gossip(const Options& o, const Compressor* compressor) {
  if (!compressor) refuse(o, "a matrix is factored by all ranks together, not between neighbours: take topk");
  if (!compressor->fixed_length()) refuse(o, "neighbours must know the length of what they hear: take topk");
  if (o.feedback != "ef21")
    refuse(o, "values do not become small as copies agree, only their moves do: feedback ef21 tells those (CHOCO-SGD)");
  if (o.topology == "one_peer") refuse(o, "who hears moves must have heard them all: take a graph that stays the same");
  if (o.gossip_mode == "adapt_with_combine") refuse(o, "moves are known after the step: take adapt_then_combine");
  if (o.tracking) refuse(o, "tracked gradients travel as they are: sync.tracking = false is wanted");
  if (o.hierarchical) refuse(o, "nodes exchange values as they are: sync.hierarchical = false is wanted");
  if (!(o.gossip_step > 0 && o.gossip_step <= 1))
    throw UsageError(fmt::format("sync.gossip_step = {}: more than 0 and at most 1 is wanted", o.gossip_step));
}

void check_local(const Options& o) {
  if (o.sample > 0) refuse(o, "what a copy that is not drawn left out would never be sent: sync.sample = 0 is wanted");
  if (o.average_over != "allreduce") refuse(o, "codes go by sync.average_over = \"allreduce\"");
}

}  // namespace

void check_compression(const Options& o) {
  if (o.compress == "none") {
    if (o.feedback != "none")
      throw UsageError(fmt::format("sync.feedback = \"{}\" is of compressed gradients: sync.compress is wanted with it",
                                   o.feedback));
    return;
  }
  if (is_one_bit_adam(o.feedback)) return check_one_bit_adam(o);
  const bool matrices = power_sgd_rank(o.compress) > 0;
  const auto compressor = matrices ? nullptr : make_compressor(o.compress);
  const FeedbackRow& row = find_feedback(o.feedback);
  rounds_of(o.feedback);
  const bool both_ways = row.two_phase && !row.plain;
  if (matrices && o.feedback != "none" && o.feedback != "ef")
    throw UsageError("sync.compress = \"powersgd\" keeps its own errors: sync.feedback is none or ef with it");
  if (o.wire != "auto")
    refuse(o, fmt::format("codes are what travels: sync.wire = \"auto\" is wanted, this is {}", o.wire));
  if (o.method == "allreduce")
    check_all_reduce(o);
  else if (o.method == "zero1" || o.method == "zero2")
    check_zero(o, both_ways);
  else if (o.method == "ps")
    check_servers(o, compressor.get(), both_ways);
  else if (o.method == "gossip")
    check_gossip(o, compressor.get());
  else if (o.method == "local" || o.method == "diloco")
    check_local(o);
  else
    refuse(o, "stage 3 gathers values in every pass, and sync.quantise is what makes those fewer bytes: take zero2");
  if (matrices || o.force) return;
  const std::string objected = objection(*compressor, o.feedback, kSomeVector);
  if (!objected.empty()) refuse(o, objected);
}

}  // namespace esp::sync
