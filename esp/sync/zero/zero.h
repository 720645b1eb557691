// ZeRO (Rajbhandari et al. 2020): data-parallel ranks share state that each would otherwise hold whole.
//
//   stage 1  each rank keeps the optimizer state of its shard only: gradients are reduce-scattered, the rank updates
//            its shard of the weights, and the weights are all-gathered. Never an all-reduce.
//   stage 2  gradients are sharded too: a bucket is allocated with its first gradient and freed when scattered.
//   stage 3  weights are sharded too: a unit is gathered before it is used and freed after.
//
// A shard is chunk r of every bucket (stages 1 and 2) or unit (stage 3): contiguous, no padding. With groups, shards
// are distributed inside a group of neighbouring ranks, and each chunk is all-reduced across groups after it has been
// scattered.
#pragma once

#include "esp/sync/strategy.h"

namespace esp::sync {

std::unique_ptr<Strategy> make_zero1(const Setup& setup);
std::unique_ptr<Strategy> make_zero2(const Setup& setup);
std::unique_ptr<Strategy> make_zero3(const Setup& setup);

}  // namespace esp::sync
