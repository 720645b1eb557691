// Checks combinations of compression options before anything is allocated.
#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/sync/compress/one_bit_adam.h"
#include "esp/sync/compress/power_sgd.h"
#include "esp/sync/compress/strategy_compression.h"

namespace esp::sync {
namespace {

// vector length for the check: so long that a fraction such as 0.01 gives almost exactly that share of elements
constexpr int64_t kTypicalLength = 1 << 20;

[[noreturn]] void fail(const Options& o, std::string_view why) {
  throw UsageError(fmt::format("sync.compress = \"{}\" with sync.feedback = \"{}\" and sync.method = \"{}\": {}",
                               o.compress, o.feedback, o.method, why));
}

void check_all_reduce(const Options& o) {
  if (o.buckets != "fixed")
    fail(o, fmt::format("compression needs fixed buckets: got sync.buckets = \"{}\"; expected \"fixed\"", o.buckets));
}

void check_zero(const Options& o, bool compresses_sums) {
  if (power_sgd_rank(o.compress) > 0)
    fail(o,
         "powersgd computes the whole sum on every rank and cannot be sharded. Use sync.method = \"allreduce\", or "
         "another compressor");
  if (compresses_sums)
    fail(o,
         "this feedback compresses sums, and zero1 and zero2 keep the sum of a chunk uncompressed. Use ef, ef21 or "
         "none");
  if (o.group != 0) fail(o, "sums across shard groups cannot be compressed. Set sync.group = 0");
  if (o.accumulate == "reduced")
    fail(o, "a step sends one compressed gradient, not one per micro-batch. Set sync.accumulate = \"local\"");
}

void check_servers(const Options& o, const Compressor* compressor, bool compresses_sums) {
  if (!compressor) fail(o, "powersgd needs an all-reduce, and servers have none. Use sync.method = \"allreduce\"");
  if (!compressor->fixed_length())
    fail(o, "the encoded length varies, and parameter servers need a fixed length. Use a compressor such as topk");
  if (o.ps.exchange != "messages")
    fail(o, "sync.exchange = \"collectives\" cannot send compressed pushes. Set sync.exchange = \"messages\"");
  if (compresses_sums && o.ps.update != "worker")
    fail(o, "this feedback compresses sums, and these servers send weights. Use ef, or set sync.update = \"worker\"");
}

void check_gossip(const Options& o, const Compressor* compressor) {
  if (!compressor) fail(o, "powersgd needs an all-reduce, and gossip has none. Use a compressor such as topk");
  if (!compressor->fixed_length())
    fail(o, "the encoded length varies, and gossip needs a fixed length. Use a compressor such as topk");
  if (o.feedback != "ef21")
    fail(o, "compressed gossip must send changes of the weights (CHOCO-SGD). Set sync.feedback = \"ef21\"");
  if (o.topology == "one_peer")
    fail(o, "compressed gossip needs a fixed graph, and one_peer changes every step. Use another topology");
  if (o.gossip_mode == "adapt_with_combine")
    fail(o,
         "compressed gossip sends changes of the weights, and adapt_with_combine sends before they are known. Set "
         "sync.gossip_mode = \"adapt_then_combine\"");
  if (o.tracking) fail(o, "tracked gradients cannot be compressed. Set sync.tracking = false");
  if (o.hierarchical) fail(o, "averages between nodes cannot be compressed. Set sync.hierarchical = false");
  if (!(o.gossip_step > 0 && o.gossip_step <= 1))
    throw UsageError(fmt::format("sync.gossip_step: got {}; expected a number in (0, 1]", o.gossip_step));
}

void check_local(const Options& o) {
  if (o.sample > 0) fail(o, "the residual of a replica that is not sampled would never be sent. Set sync.sample = 0");
  if (o.average_over != "allreduce")
    fail(o, "servers cannot average compressed changes. Set sync.average_over = \"allreduce\"");
}

}  // namespace

void check_compression(const Options& o) {
  if (o.compress == "none") {
    if (o.feedback != "none")
      throw UsageError(
          fmt::format("sync.feedback: got \"{}\" with sync.compress = \"none\"; expected \"none\", because nothing is "
                      "compressed. Set sync.compress, or sync.feedback = \"none\".",
                      o.feedback));
    return;
  }
  if (is_one_bit_adam(o.feedback)) return check_one_bit_adam(o);
  const bool matrices = power_sgd_rank(o.compress) > 0;
  const auto compressor = matrices ? nullptr : make_compressor(o.compress);
  const FeedbackRow& row = find_feedback(o.feedback);
  rounds_of(o.feedback);
  const bool compresses_sums = row.two_phase && !row.plain;
  if (matrices && o.feedback != "none" && o.feedback != "ef")
    throw UsageError(
        fmt::format("sync.feedback: got \"{}\" with sync.compress = \"powersgd\"; expected none or ef, because "
                    "powersgd keeps the residual itself. Set sync.feedback = \"ef\".",
                    o.feedback));
  if (o.wire != "auto")
    fail(o, fmt::format("the compressor sets the wire format: got sync.wire = \"{}\"; expected \"auto\"", o.wire));
  if (o.method == "allreduce")
    check_all_reduce(o);
  else if (o.method == "zero1" || o.method == "zero2")
    check_zero(o, compresses_sums);
  else if (o.method == "ps")
    check_servers(o, compressor.get(), compresses_sums);
  else if (o.method == "gossip")
    check_gossip(o, compressor.get());
  else if (o.method == "local" || o.method == "diloco")
    check_local(o);
  else
    fail(o, "zero3 cannot compress gradients. Use sync.method = \"zero2\", or sync.quantise to send fewer bytes");
  if (matrices || o.force) return;
  const std::string reason = divergence_reason(*compressor, o.feedback, kTypicalLength);
  if (!reason.empty()) fail(o, reason);
}

}  // namespace esp::sync
