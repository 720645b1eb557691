#include "esp/train/convert_weights.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "esp/base/error.h"
#include "esp/device/gpu.h"
#include "esp/kernel/elementwise.h"
#include "esp/model/hf_names.h"
#include "esp/train/shard_sections.h"

namespace esp::train {
namespace {

using Bytes = std::vector<std::byte>;
constexpr std::array<std::string_view, 3> kTokenTables = {"embedding.weight", "head.weight", "head.bias"};

// A block of columns of a parameter matrix: `rows` × `width` elements that start at `column`. A row of the parameter
// has `stride` columns.
struct Block {
  int64_t rows, stride, column, width;
  bool transposed;
  int rank;

  Block(const tensor::Shape& shape, const model::HfPart& part)
      : rows(shape.rank() == 1 ? 1 : shape.rows()),
        stride(shape.dim(-1)),
        column(part.first_column),
        width(part.num_columns ? part.num_columns : stride),
        transposed(part.transposed),
        rank(shape.rank()) {}

  int64_t count() const { return rows * width; }
  std::vector<int64_t> hf_shape() const {
    if (rank == 1) return {width};
    return transposed ? std::vector{width, rows} : std::vector{rows, width};
  }
};

void check_shape(const ckpt::HfFolder& folder, const nn::Parameter& parameter, const ckpt::HfFolder::TensorRef& found,
                 const Block& block, bool first_rows) {
  const std::vector<int64_t>& shape = found.entry->shape;
  const std::vector<int64_t> wanted = block.hf_shape();
  const bool longer = first_rows && shape.size() == 2 && shape[0] > wanted[0] && shape[1] == wanted[1];
  if (shape != wanted && !longer)
    throw IoError(fmt::format("{}: {} has shape [{}]; {} of this model needs [{}]", folder.path(), found.entry->name,
                              fmt::join(shape, ", "), parameter.name, fmt::join(wanted, ", ")));
  if (!is_floating(found.entry->dtype))
    throw IoError(fmt::format("{}: {}: got type {}; expected a floating-point type", folder.path(), found.entry->name,
                              name_of(found.entry->dtype)));
}

void read_part(const tensor::Tensor& values, const Block& block, const ckpt::HfFolder::TensorRef& found,
               const device::Stream& stream) {
  const DType dtype = values.dtype();
  const size_t size = size_of(dtype);
  const Bytes stored = found.bytes();
  if (!kernel::all_finite(stored.data(), static_cast<int64_t>(found.entry->count()), found.entry->dtype, stream))
    throw IoError(
        fmt::format("{}: {}: got values that are not finite (NaN or infinity); expected finite weights. Use "
                    "an earlier checkpoint, or download the file again",
                    found.file->path(), found.entry->name));
  Bytes cast(static_cast<size_t>(block.count()) * size), turned;
  kernel::cast(cast.data(), dtype, stored.data(), found.entry->dtype, block.count(), stream);
  if (block.transposed) {
    turned.resize(cast.size());
    kernel::transpose(turned.data(), cast.data(), 1, block.width, block.rows, dtype, stream);
    cast.swap(turned);
  }
  auto* to = static_cast<std::byte*>(values.data());
  const auto width = static_cast<size_t>(block.width) * size;
  for (int64_t r = 0; r < block.rows; ++r)
    device::transfer(to + static_cast<size_t>(r * block.stride + block.column) * size,
                     cast.data() + static_cast<size_t>(r) * width, width);
}

// The reverse of read_part: writes the block in `dtype` to `to`, which must have room for it.
void write_part(std::byte* to, DType dtype, const tensor::Tensor& values, const Block& block,
                const device::Stream& stream) {
  const size_t size = size_of(values.dtype()), width = static_cast<size_t>(block.width) * size;
  Bytes gathered(static_cast<size_t>(block.count()) * size), turned;
  const auto* from = static_cast<const std::byte*>(values.data());
  for (int64_t r = 0; r < block.rows; ++r)
    device::transfer(gathered.data() + static_cast<size_t>(r) * width,
                     from + static_cast<size_t>(r * block.stride + block.column) * size, width);
  if (block.transposed) {
    turned.resize(gathered.size());
    kernel::transpose(turned.data(), gathered.data(), 1, block.rows, block.width, values.dtype(), stream);
    gathered.swap(turned);
  }
  kernel::cast(to, dtype, gathered.data(), values.dtype(), block.count(), stream);
}

// True if both tensors have the same values, even if their dtypes differ.
bool equal(const ckpt::HfFolder::TensorRef& a, const ckpt::HfFolder::TensorRef& b) {
  if (a.entry->shape != b.entry->shape) return false;
  if (a.entry->dtype == b.entry->dtype) return a.bytes() == b.bytes();
  if (!is_floating(a.entry->dtype) || !is_floating(b.entry->dtype)) return false;
  const auto count = static_cast<int64_t>(a.entry->count());
  const auto widened = [&](const ckpt::HfFolder::TensorRef& found) {
    std::vector<double> values(static_cast<size_t>(count));
    kernel::cast(values.data(), DType::f64, found.bytes().data(), found.entry->dtype, count, device::Stream());
    return values;
  };
  return widened(a) == widened(b);
}

bool is_whole(model::Model& model) {
  const auto& units = model.parameters().units();
  return units.front().name == "stem" && units.back().name == "head";
}

}  // namespace

bool is_head_parameter(model::Model& model, const nn::Parameter& parameter) {
  return model.parameters().units()[static_cast<size_t>(parameter.unit)].name == "head";
}

ckpt::HfFolder open_hf_folder(const std::string& path, const model::ModelConfig& config) {
  ckpt::HfFolder folder(path);
  folder.rename([&](const std::string& name) { return model::hf_canonical_name(config, name); });
  for (const model::HfAlias& copy : model::hf_aliases(config)) {
    const auto found = folder.find(copy.name), of = folder.find(copy.of);
    if (found && !of) folder.rename([&](const std::string& name) { return name == copy.name ? copy.of : name; });
    if (found && of && copy.tied && !equal(*found, *of))
      throw IoError(
          fmt::format("{}: {} differs from {}, but config.json has tie_word_embeddings = true. Set it to false to "
                      "use both tensors, or remove {}",
                      path, copy.name, copy.of, copy.name));
  }
  return folder;
}

DType hf_storage_type(const ckpt::HfFolder& folder, const model::ModelConfig& config) {
  std::optional<DType> widest;
  for (const auto& row : model::hf_names(config))
    for (const auto& part : row.parts) {
      const auto found = folder.find(part.name);
      // skipped here: read_hf_weights reports such a tensor by name
      if (!found || !is_floating(found->entry->dtype)) continue;
      const DType dtype = found->entry->dtype;
      if (!widest || size_of(dtype) > size_of(*widest)) widest = dtype;
      // fp16 and bf16 cannot represent each other's values, so the common dtype is fp32.
      if (size_of(dtype) == size_of(*widest) && dtype != *widest) widest = DType::f32;
    }
  return widest.value_or(DType::f32);
}

HfReadReport read_hf_weights(model::Model& model, ckpt::HfFolder& folder, HeadPolicy head,
                             const device::Stream& stream) {
  HfReadReport reading;
  const bool lenient = head == HeadPolicy::may_be_new;
  for (const model::HfTensor& row : model::hf_names(model.config())) {
    const nn::Parameter* found_here = model.parameters().find_or_null(row.name);
    if (!found_here) {  // the parameter belongs to another pipeline stage
      ESP_CHECK(!is_whole(model), "the model has no parameter {}", row.name);
      for (const model::HfPart& part : row.parts)
        if (folder.find(part.name)) folder.take(part.name);
      continue;
    }
    const nn::Parameter& parameter = *found_here;
    if (lenient && is_head_parameter(model, parameter) && !folder.find(row.parts.front().name)) {
      reading.new_parameters.push_back(parameter.name);
      continue;
    }
    // A sharded parameter, or one on a GPU, is first assembled as a whole tensor on the host, because Hugging Face
    // packs and transposes tensors differently.
    const tensor::Tensor& values = parameter.weight.value;
    const bool in_place = parameter.cut_dim < 0 && device::is_host_accessible(values.data());
    Bytes all(in_place ? 0 : static_cast<size_t>(parameter.global_shape.count()) * size_of(values.dtype()));
    const tensor::Tensor whole =
        all.empty() ? values : tensor::Tensor::borrow(all.data(), parameter.global_shape, values.dtype());
    for (const model::HfPart& part : row.parts) {
      const Block block(parameter.global_shape, part);
      const auto found = folder.take(part.name);
      check_shape(folder, parameter, found, block, lenient && parameter.name == kPositionsName);
      read_part(whole, block, found, device::host_side(stream));
    }
    if (!all.empty()) copy_shard(parameter, whole, values);
  }
  const std::vector<model::HfAlias> copies = model::hf_aliases(model.config());
  for (const std::string& name : folder.unused_names()) {
    const bool copied =
        std::any_of(copies.begin(), copies.end(), [&](const model::HfAlias& copy) { return copy.name == name; });
    if (!copied && !model::hf_is_ignored(model.config(), name)) reading.unused_tensors.push_back(name);
  }
  return reading;
}

std::vector<ckpt::DeferredTensor> hf_tensors(model::Model& model, DType dtype, int64_t vocab,
                                             const device::Stream& stream) {
  std::vector<ckpt::DeferredTensor> tensors;
  std::vector<model::HfAlias> copies = model::hf_aliases(model.config());
  std::erase_if(copies, [](const model::HfAlias& copy) { return copy.tied; });
  for (const model::HfTensor& row : model::hf_names(model.config())) {
    const nn::Parameter& parameter = model.parameters().find(row.name);
    const bool of_tokens = std::find(kTokenTables.begin(), kTokenTables.end(), row.name) != kTokenTables.end();
    const tensor::Tensor values = of_tokens ? parameter.weight.value.slice(0, vocab) : parameter.weight.value;
    for (const model::HfPart& part : row.parts) {
      const Block block(values.shape(), part);
      std::vector<std::string> names = {part.name};
      for (const model::HfAlias& copy : copies)
        if (copy.of == part.name) names.push_back(copy.name);
      for (const std::string& name : names)
        tensors.push_back({name, dtype, block.hf_shape(), [=, &stream](std::byte* to) {
                             write_part(to, dtype, values, block, device::host_side(stream));
                           }});
    }
  }
  return tensors;
}

}  // namespace esp::train
