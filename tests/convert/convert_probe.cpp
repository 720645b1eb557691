// convert_probe FOLDER IDS OUT.npy [hidden]: writes a model's outputs for given token ids, for comparison with
// `transformers`.
//
// IDS contains one sequence per line; shorter sequences are padded. OUT.npy contains the logits, or the hidden states
// after the last block, in fp32; padding positions are zero.
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "esp/base/error.h"
#include "esp/obs/file.h"
#include "esp/train/trained_model.h"

namespace {

using namespace esp;

struct Ids {
  std::vector<int32_t> values, lengths;  // shapes: values [B, T], lengths [B]
  int64_t T = 0;
};

Ids read_ids(const std::string& path, int64_t vocab) {
  std::ifstream file(path);
  std::vector<std::vector<int32_t>> rows;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    rows.emplace_back(std::istream_iterator<int32_t>(words), std::istream_iterator<int32_t>());
  }
  Ids ids;
  for (const auto& row : rows) ids.T = std::max(ids.T, static_cast<int64_t>(row.size()));
  for (auto& row : rows) {
    for (int32_t id : row)
      if (id < 0 || id >= vocab) throw UsageError(fmt::format("id {} is outside the vocabulary of {}", id, vocab));
    ids.lengths.push_back(static_cast<int32_t>(row.size()));
    row.resize(static_cast<size_t>(ids.T));
    ids.values.insert(ids.values.end(), row.begin(), row.end());
  }
  if (ids.T == 0) throw IoError(path + ": no ids");
  return ids;
}

void write_npy(const std::string& path, const tensor::Tensor& x) {
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({},), }}", fmt::join(x.shape().dims(), ", "));
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 10 - 1, ' ');
  header += '\n';
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size() & 0xff);
  bytes += static_cast<char>(header.size() >> 8);
  obs::write_whole_file(path, bytes + header + std::string(static_cast<const char*>(x.data()), x.bytes()));
}

int run(int argc, char** argv) {
  if (argc < 4 || argc > 5 || (argc == 5 && std::string_view(argv[4]) != "hidden"))
    throw UsageError("convert_probe FOLDER IDS OUT.npy [hidden]");
  const auto loaded = train::load_model(argv[1]);
  Ids ids = read_ids(argv[2], loaded->config.model.vocab);
  const auto B = static_cast<int64_t>(ids.lengths.size());
  model::ModelBatch batch;
  batch.inputs = tensor::Tensor::borrow(ids.values.data(), {B, ids.T}, DType::i32);
  batch.lengths = tensor::Tensor::borrow(ids.lengths.data(), {B}, DType::i32);
  autograd::Tape tape(loaded->context);
  const autograd::NoGradGuard quiet(tape);
  nn::ForwardContext pass;
  pass.tape = &tape;
  const tensor::Tensor out =
      argc == 5 ? loaded->model->hidden(pass, batch).x.value() : loaded->model->logits_of(pass, batch);
  const tensor::Tensor values = tensor::cast_to(loaded->context, out, DType::f32, device::MemoryCategory::other);
  if (values.shape().rank() == 3)
    for (int64_t b = 0; b < B; ++b)
      for (int64_t t = ids.lengths[static_cast<size_t>(b)]; t < ids.T; ++t)
        std::memset(values.as<float>() + (b * ids.T + t) * values.dim(-1), 0, static_cast<size_t>(values.dim(-1)) * 4);
  write_npy(argv[3], values);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const esp::Error& error) {
    fmt::print(stderr, "convert_probe: {}\n", error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "convert_probe: {}\n", error.what());
    return 1;
  }
}
