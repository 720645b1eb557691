// ZeRO (Rajbhandari et al. 2020): copies that share what each would otherwise hold whole.
//
//   stage 1  each rank keeps the optimizer's state of its share only: gradients are reduce-scattered, the rank updates
//   its
//            share of the values, and the values are all-gathered. Never an all-reduce.
//   stage 2  nor does it keep other ranks' gradients: a bucket's memory is there from its first gradient until it has
//   been
//            scattered.
//   stage 3  nor other ranks' values: a unit's are gathered before it is used and dropped after.
//
// A share is chunk r of every bucket (stages 1 and 2) or unit (stage 3): contiguous, no padding. With groups, shards
// lie inside a group of neighbouring ranks and each chunk is all-reduced across groups after it has been scattered.
#pragma once

#include "esp/sync/strategy.h"

namespace esp::sync {

std::unique_ptr<Strategy> make_zero1(const Setup& setup);
std::unique_ptr<Strategy> make_zero2(const Setup& setup);
std::unique_ptr<Strategy> make_zero3(const Setup& setup);

}  // namespace esp::sync
