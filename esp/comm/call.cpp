#include "esp/comm/call.h"

#include <algorithm>

#include "esp/base/check.h"
#include "esp/base/table.h"
#include "esp/comm/algo/table.h"

namespace esp::comm {
namespace {

struct OpRow {
  std::string_view name;
  Op op;
};

constexpr OpRow kOps[] = {
    {"broadcast", Op::broadcast},
    {"reduce", Op::reduce},
    {"all_reduce", Op::all_reduce},
    {"reduce_scatter", Op::reduce_scatter},
    {"all_gather", Op::all_gather},
    {"all_to_all", Op::all_to_all},
    {"all_to_all_v", Op::all_to_all_v},
    {"gather", Op::gather},
    {"scatter", Op::scatter},
    {"send", Op::send},
    {"recv", Op::recv},
    {"barrier", Op::barrier},
    {"signal", Op::signal},
    {"wait", Op::wait},
};

// Bit layout of Tag::what, lowest bits first: op 8, element type 8, reduction 8, algorithm id plus one 12, root 28.
constexpr int kDTypeShift = 8, kReduceShift = 16, kAlgorithmShift = 24, kRootShift = 36;
constexpr uint64_t kAlgorithmMask = 0xfff, kRootMask = 0xfffffff;

struct Described {
  Op op;
  DType dtype;
  ReduceOp reduce;
  int root;
  uint64_t count;
  std::string_view algorithm;
};

bool reduces(Op op) {
  return op == Op::reduce || op == Op::all_reduce || op == Op::reduce_scatter;
}

std::string call_text(const Described& call) {
  std::string text(name_of(call.op));
  if (call.op == Op::barrier) return fmt::format("{}, algorithm {}", text, call.algorithm);
  if (call.op == Op::signal) return fmt::format("signal to {}", call.root);
  if (call.op == Op::wait) return fmt::format("wait for {}", call.root);
  // all_to_all_v has per-peer counts, so no total is printed.
  if (call.op == Op::all_to_all_v)
    text += fmt::format(" of {}", name_of(call.dtype));
  else
    text += fmt::format(" of {} {}", call.count, name_of(call.dtype));
  if (call.op == Op::send) return text + fmt::format(" to {}", call.root);
  if (call.op == Op::recv) return text + fmt::format(" from {}", call.root);
  if (reduces(call.op)) text += fmt::format(", {}", kernel::name_of(call.reduce));
  if (call.op == Op::broadcast || call.op == Op::scatter) text += fmt::format(" from root {}", call.root);
  if (call.op == Op::reduce || call.op == Op::gather) text += fmt::format(" to root {}", call.root);
  return text + fmt::format(", algorithm {}", call.algorithm);
}

}  // namespace

std::string_view name_of(Op op) {
  for (const OpRow& row : kOps)
    if (row.op == op) return row.name;
  check_failed(__FILE__, __LINE__, "known op", fmt::format("{}", static_cast<int>(op)));
}

Op parse_op(std::string_view name) {
  return find_row("collective", kOps, name).op;
}

Chunk chunk_of(size_t count, int num_chunks, int k) {
  ESP_CHECK(num_chunks > 0 && k >= 0 && k < num_chunks, "chunk: got {}; expected 0 <= chunk < {}", k, num_chunks);
  auto parts = static_cast<size_t>(num_chunks), index = static_cast<size_t>(k);
  size_t base = count / parts, longer = count % parts;
  return {index * base + std::min(index, longer), base + (index < longer ? 1 : 0)};
}

std::string describe(const Call& call) {
  return call_text({call.op, call.dtype, call.reduce, call.root, call.count, call.algorithm});
}

std::optional<Op> op_of(const net::Tag& tag) {
  auto op = static_cast<uint8_t>(tag.what);
  if (op > static_cast<uint8_t>(Op::wait)) return std::nullopt;
  return static_cast<Op>(op);
}

bool is_collective(Op op) {
  return op != Op::send && op != Op::recv && op != Op::signal && op != Op::wait;
}

std::string describe(const net::Tag& tag) {
  std::optional<Op> op = op_of(tag);
  auto dtype = static_cast<uint8_t>(tag.what >> kDTypeShift);
  auto reduce = static_cast<uint8_t>(tag.what >> kReduceShift);
  // Tags come from the network. A value that does not encode a call is printed as a number and never used as an index.
  if (!op || dtype > static_cast<uint8_t>(DType::u8) || reduce > static_cast<uint8_t>(ReduceOp::avg))
    return fmt::format("an unknown call (tag {:#x})", tag.what);
  int algorithm = static_cast<int>((tag.what >> kAlgorithmShift) & kAlgorithmMask) - 1;
  int root = static_cast<int>((tag.what >> kRootShift) & kRootMask);
  std::string text = call_text(
      {*op, static_cast<DType>(dtype), static_cast<ReduceOp>(reduce), root, tag.count, algorithm_name(algorithm)});
  return tag.schedule == 0 ? text : fmt::format("{} {:08x}", text, tag.schedule);
}

net::Tag tag_of(const Call& call, uint64_t sequence, int algorithm_id) {
  ESP_CHECK(algorithm_id >= -1 && algorithm_id < static_cast<int>(kAlgorithmMask),
            "algorithm id: got {}; expected -1 to {}", algorithm_id, kAlgorithmMask - 1);
  ESP_CHECK(call.root >= 0 && static_cast<uint64_t>(call.root) <= kRootMask, "root: got {}; expected 0 to {}",
            call.root, kRootMask);
  net::Tag tag;
  tag.sequence = sequence;
  tag.count = call.count;
  tag.what = static_cast<uint64_t>(call.op) | static_cast<uint64_t>(call.dtype) << kDTypeShift |
             static_cast<uint64_t>(call.reduce) << kReduceShift |
             static_cast<uint64_t>(algorithm_id + 1) << kAlgorithmShift |
             static_cast<uint64_t>(call.root) << kRootShift;
  return tag;
}

}  // namespace esp::comm
