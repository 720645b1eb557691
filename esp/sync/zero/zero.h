// ZeRO (Rajbhandari et al. 2020): data-parallel ranks shard the state that each rank would otherwise hold whole.
//
//   stage 1  each rank keeps the optimizer state of its shard only: gradients are reduce-scattered, the rank updates
//            its shard of the weights, and the weights are all-gathered. There is no all-reduce.
//   stage 2  gradients are sharded too: a gradient bucket is allocated with its first gradient and freed after its
//            reduce-scatter.
//   stage 3  weights are sharded too (as in FSDP): a unit is gathered before its use and freed after it.
//
// The shard of rank r is chunk r of every bucket (stages 1 and 2) or of every unit (stage 3): contiguous, no padding.
// With groups, shards are distributed inside a group of neighbouring ranks, and each chunk is all-reduced across groups
// after it has been scattered.
#pragma once

#include "esp/sync/strategy.h"

namespace esp::sync {

std::unique_ptr<Strategy> make_zero1(const Setup& setup);
std::unique_ptr<Strategy> make_zero2(const Setup& setup);
std::unique_ptr<Strategy> make_zero3(const Setup& setup);

}  // namespace esp::sync
