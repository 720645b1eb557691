// Run files that do not fit the number of ranks: a UsageError must report the invalid value and valid ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "tests/parity/sync_runs.h"

namespace esp::parity {
namespace {

using testing::HasSubstr;

std::string error_of(int ranks, const Overrides& overrides) {
  RunSpec spec;
  spec.ranks = ranks;
  spec.steps = 1;
  spec.overrides = tiny_model(overrides);
  try {
    train_ranks(spec);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "(trained)";
}

TEST(SyncConfigErrors, RejectsUnknownMethod) {
  const std::string message = error_of(2, {"sync.method=zero4"});
  EXPECT_THAT(message, HasSubstr("zero4"));
  for (const char* known : {"allreduce", "zero1", "zero2", "zero3"}) EXPECT_THAT(message, HasSubstr(known));
}

TEST(SyncConfigErrors, RejectsBatchNotDivisibleByRanks) {
  const std::string message = error_of(5, {});
  EXPECT_THAT(message, HasSubstr("train.global_batch = 24"));
  EXPECT_THAT(message, HasSubstr("multiple of dp = 5"));
}

TEST(SyncConfigErrors, RejectsMicroBatchThatDoesNotDivideBatchOfRank) {
  const std::string message = error_of(4, {"train.micro_batch=4"});
  EXPECT_THAT(message, HasSubstr("train.micro_batch = 4"));
  EXPECT_THAT(message, HasSubstr("6 sequences"));
}

TEST(SyncConfigErrors, RejectsShardGroupThatDoesNotDivideReplicas) {
  EXPECT_THAT(error_of(4, {"sync.method=zero3", "sync.group=3"}), HasSubstr("sync.group = 3"));
  EXPECT_THAT(error_of(4, {"sync.method=zero3", "sync.group=3"}), HasSubstr("4 replicas"));
  EXPECT_THAT(error_of(4, {"sync.method=allreduce", "sync.group=2"}), HasSubstr("zero1"));
}

TEST(SyncConfigErrors, RejectsAccumulationUnsupportedByMethod) {
  EXPECT_THAT(error_of(2, {"sync.method=zero1", "sync.accumulate=reduced"}), HasSubstr("zero2"));
  EXPECT_THAT(error_of(2, {"sync.accumulate=reduced"}), HasSubstr("local"));
  EXPECT_THAT(error_of(2, {"sync.accumulate=sometimes"}), HasSubstr("reduced"));
}

TEST(SyncConfigErrors, RejectsUnknownWireType) {
  EXPECT_THAT(error_of(2, {"sync.wire=fp8"}), HasSubstr("bf16"));
}

TEST(SyncConfigErrors, RejectsInvalidBucketSizeAndPrefetch) {
  EXPECT_THAT(error_of(2, {"sync.bucket_mb=0"}), HasSubstr("sync.bucket_mb"));
  EXPECT_THAT(error_of(2, {"sync.method=zero3", "sync.prefetch=-1"}), HasSubstr("sync.prefetch"));
}

}  // namespace
}  // namespace esp::parity
