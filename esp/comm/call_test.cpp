#include "esp/comm/call.h"

#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/comm/algo/table.h"

namespace esp::comm {
namespace {

TEST(Op, NamesRoundTrip) {
  for (int i = 0; i <= static_cast<int>(Op::wait); ++i)
    EXPECT_EQ(parse_op(name_of(static_cast<Op>(i))), static_cast<Op>(i));
  EXPECT_THROW(parse_op("all_redce"), UsageError);
}

TEST(Chunk, ChunksCoverBufferInOrder) {
  for (size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1000}})
    for (int parts : {1, 2, 3, 8, 17}) {
      size_t next = 0;
      for (int k = 0; k < parts; ++k) {
        Chunk chunk = chunk_of(count, parts, k);
        EXPECT_EQ(chunk.offset, next);
        EXPECT_EQ(chunk.count,
                  count / static_cast<size_t>(parts) + (static_cast<size_t>(k) < count % static_cast<size_t>(parts)));
        next += chunk.count;
      }
      EXPECT_EQ(next, count);
    }
}

TEST(Describe, NamesOpTypeAndCount) {
  Call call;
  call.op = Op::all_reduce;
  call.count = 1000;
  call.algorithm = "ring";
  EXPECT_EQ(describe(call), "all_reduce of 1000 f32, sum, algorithm ring");
  call.op = Op::broadcast;
  call.root = 2;
  call.algorithm = "tree";
  EXPECT_EQ(describe(call), "broadcast of 1000 f32 from root 2, algorithm tree");
  call.op = Op::send;
  EXPECT_EQ(describe(call), "send of 1000 f32 to 2");
}

TEST(Tag, RoundTripsCall) {
  for (const AlgorithmRow& row : algorithms())
    for (DType dtype : kAllDTypes)
      for (ReduceOp reduce : kernel::kAllReduceOps) {
        Call call;
        call.op = row.op;
        call.count = 12345;
        call.dtype = dtype;
        call.reduce = reduce;
        call.root = 268435455;
        call.algorithm = row.name;
        EXPECT_EQ(describe(tag_of(call, 7, algorithm_id(row))), describe(call));
      }
}

TEST(Tag, DiffersWhenAnyFieldOfCallDiffers) {
  Call call;
  call.op = Op::reduce;
  net::Tag tag = tag_of(call, 1, 3);
  EXPECT_EQ(tag, tag_of(call, 1, 3));
  EXPECT_NE(tag, tag_of(call, 2, 3));
  EXPECT_NE(tag, tag_of(call, 1, 4));
  Call other = call;
  other.root = 1;
  EXPECT_NE(tag, tag_of(other, 1, 3));
  other = call;
  other.dtype = DType::f64;
  EXPECT_NE(tag, tag_of(other, 1, 3));
  other = call;
  other.reduce = ReduceOp::max;
  EXPECT_NE(tag, tag_of(other, 1, 3));
  other = call;
  other.count = 1;
  EXPECT_NE(tag, tag_of(other, 1, 3));
}

TEST(Tag, InvalidTagIsPrintedAsNumbers) {
  net::Tag tag;
  tag.what = ~uint64_t{0};
  EXPECT_EQ(describe(tag), "an unknown call (tag 0xffffffffffffffff)");
}

}  // namespace
}  // namespace esp::comm
