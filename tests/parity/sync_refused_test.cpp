// Run files that so many ranks cannot train: a UsageError that says what was given and what would do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "tests/parity/sync_runs.h"

namespace esp::parity {
namespace {

using testing::HasSubstr;

std::string refusal(int ranks, const Overrides& overrides) {
  Plan plan;
  plan.ranks = ranks;
  plan.steps = 1;
  plan.overrides = tiny(overrides);
  try {
    train_ranks(plan);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "(trained)";
}

TEST(Refused, UnknownMethod) {
  const std::string said = refusal(2, {"sync.method=zero4"});
  EXPECT_THAT(said, HasSubstr("zero4"));
  for (const char* known : {"allreduce", "zero1", "zero2", "zero3"}) EXPECT_THAT(said, HasSubstr(known));
}

TEST(Refused, BatchThatRanksCannotShare) {
  const std::string said = refusal(5, {});
  EXPECT_THAT(said, HasSubstr("train.global_batch = 24"));
  EXPECT_THAT(said, HasSubstr("multiple of dp = 5"));
}

TEST(Refused, MicroBatchThatDoesNotDivideAShare) {
  const std::string said = refusal(4, {"train.micro_batch=4"});
  EXPECT_THAT(said, HasSubstr("train.micro_batch = 4"));
  EXPECT_THAT(said, HasSubstr("6 sequences"));
}

TEST(Refused, GroupThatDoesNotDivide) {
  EXPECT_THAT(refusal(4, {"sync.method=zero3", "sync.group=3"}), HasSubstr("sync.group = 3"));
  EXPECT_THAT(refusal(4, {"sync.method=zero3", "sync.group=3"}), HasSubstr("4 replicas"));
  EXPECT_THAT(refusal(4, {"sync.method=allreduce", "sync.group=2"}), HasSubstr("zero1"));
}

TEST(Refused, WaysOfAddingUpThatAMethodDoesNotHave) {
  EXPECT_THAT(refusal(2, {"sync.method=zero1", "sync.accumulate=reduced"}), HasSubstr("zero2"));
  EXPECT_THAT(refusal(2, {"sync.accumulate=reduced"}), HasSubstr("local"));
  EXPECT_THAT(refusal(2, {"sync.accumulate=sometimes"}), HasSubstr("reduced"));
}

TEST(Refused, UnknownWire) {
  EXPECT_THAT(refusal(2, {"sync.wire=fp8"}), HasSubstr("bf16"));
}

TEST(Refused, SizesThatMeanNothing) {
  EXPECT_THAT(refusal(2, {"sync.bucket_mb=0"}), HasSubstr("sync.bucket_mb"));
  EXPECT_THAT(refusal(2, {"sync.method=zero3", "sync.prefetch=-1"}), HasSubstr("sync.prefetch"));
}

}  // namespace
}  // namespace esp::parity
