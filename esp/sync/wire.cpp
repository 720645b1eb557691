#include "esp/sync/wire.h"

#include "esp/base/table.h"
#include "esp/kernel/elementwise.h"

namespace esp::sync {
namespace {

struct Row {
  std::string_view name;
  DType type;
};
constexpr Row kWires[] = {{"auto", DType::u8}, {"fp32", DType::f32}, {"bf16", DType::bf16}, {"fp16", DType::f16}};

}  // namespace

DType wire_type(std::string_view name, DType storage) {
  const DType type = find_row("sync.wire", kWires, name).type;
  return type == DType::u8 ? storage : type;
}

tensor::Tensor to_wire(const tensor::Context& context, const tensor::Tensor& flat, DType wire) {
  return flat.dtype() == wire ? flat : tensor::cast_to(context, flat, wire, device::MemoryCategory::buffer);
}

void from_wire(const tensor::Context& context, const tensor::Tensor& wire, const tensor::Tensor& flat) {
  if (wire.data() == flat.data()) return;
  kernel::cast(flat.data(), flat.dtype(), wire.data(), wire.dtype(), flat.count(), context.stream);
}

}  // namespace esp::sync
