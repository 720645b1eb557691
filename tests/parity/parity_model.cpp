// parity_model DIR: runs an Espalier model on the inputs in DIR and writes the results there, for comparison with
// PyTorch.
//
// Inputs: case.json ({dtype, model{…}, tensors{name: shape}, steps, lr, weight_decay}), and as raw little-endian files
// weight.<parameter> and the i32 batch tensors named in `tensors` (inputs, targets, lengths, decoder_inputs, segments).
// Outputs: logits, grad.<parameter>, and result.json with the loss and the losses before each of `steps` AdamW steps.
#include <fstream>
#include <iostream>

#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/kernel/optimizer_step.h"
#include "esp/model/model.h"

namespace {

using namespace esp;  // this program has only one source file

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw IoError("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void read_tensor(const std::string& path, const tensor::Tensor& into) {
  const std::string bytes = read_file(path);
  if (bytes.size() != into.bytes())
    throw IoError(fmt::format("{}: got {} bytes; expected {}", path, bytes.size(), into.bytes()));
  std::copy(bytes.begin(), bytes.end(), into.as<char>());
}

void write_tensor(const std::string& path, const tensor::Tensor& from) {
  std::ofstream(path, std::ios::binary).write(from.as<char>(), static_cast<std::streamsize>(from.bytes()));
}

kernel::RopeScaling parse_rope_scaling(const std::string& name) {
  if (name == "linear") return kernel::RopeScaling::linear;
  if (name == "yarn") return kernel::RopeScaling::yarn;
  if (name == "llama3") return kernel::RopeScaling::llama3;
  throw UsageError(fmt::format("rope_scaling: got \"{}\"; expected linear, yarn or llama3", name));
}

model::ModelConfig config_of(const Json& json) {
  model::ModelConfig c = model::default_config(json.at("arch").get<std::string>());
  for (const auto& [key, value] : json.items()) {
    if (key == "layers") c.layers = value;
    if (key == "heads") c.heads = value;
    if (key == "kv_heads") c.kv_heads = value;
    if (key == "dim") c.dim = value;
    if (key == "ffn") c.ffn = value;
    if (key == "vocab") c.vocab = value;
    if (key == "seq_len") c.seq_len = value;
    if (key == "norm_eps") c.norm_eps = value;
    if (key == "activation") c.activation = kernel::parse_activation(value.get<std::string>());
    if (key == "type_vocab") c.type_vocab = value;
    if (key == "embedding_norm") c.embedding_norm = value;
    if (key == "num_classes") c.num_classes = value;
    if (key == "pooler") c.pooler = value;
    if (key == "rope_theta") c.rope.theta = value;
    if (key == "rope_scaling") c.rope.scaling = parse_rope_scaling(value.get<std::string>());
    if (key == "rope_factor") c.rope.factor = value;
    if (key == "rope_original_seq_len") c.rope.original_seq_len = value;
  }
  return c;
}

struct ModelCase {
  std::string dir;
  Json spec = Json::parse(read_file(dir + "/case.json"));
  DType dtype = parse_dtype(spec.at("dtype").get<std::string>());
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  device::ThreadPool threads{2};
  tensor::Context context{{{}, &threads, nullptr}, &pool};
  autograd::Tape tape{context};
  std::unique_ptr<model::Model> model = model::make_model(config_of(spec.at("model")));
  model::ModelBatch batch;
  int64_t num_targets = 0;

  void load() {
    nn::ParameterList& list = model->parameters();
    list.materialize(context, dtype, true);
    for (nn::Parameter& p : list.all()) read_tensor(dir + "/weight." + p.name, p.weight.value);
    const std::pair<const char*, tensor::Tensor*> inputs[] = {{"inputs", &batch.inputs},
                                                              {"targets", &batch.targets},
                                                              {"lengths", &batch.lengths},
                                                              {"decoder_inputs", &batch.decoder_inputs},
                                                              {"segments", &batch.segments}};
    for (const auto& [name, to] : inputs) {
      if (!spec.at("tensors").contains(name)) continue;
      const auto dims = spec["tensors"][name].get<std::vector<int64_t>>();
      const tensor::Shape shape = dims.size() == 1 ? tensor::Shape{dims[0]} : tensor::Shape{dims[0], dims[1]};
      *to = tensor::empty(context, shape, DType::i32, device::MemoryCategory::other);
      read_tensor(dir + "/" + name, *to);
    }
    for (const int32_t target : batch.targets.span<int32_t>()) num_targets += target >= 0;
  }

  double step_gradients() {
    nn::ForwardContext pass;
    pass.tape = &tape;
    model->parameters().zero_gradients(context.stream);
    const autograd::Loss loss = model->forward(pass, batch, 1.0 / static_cast<double>(num_targets));
    autograd::backward(tape, loss);
    tape.clear();
    return tensor::item(loss.total.value()) / static_cast<double>(num_targets);
  }

  void train(Json& result) {
    std::vector<std::pair<tensor::Tensor, tensor::Tensor>> moments;
    for (auto& unit : model->parameters().units())
      moments.emplace_back(tensor::zeros(context, {unit.count}, dtype, device::MemoryCategory::optimizer),
                           tensor::zeros(context, {unit.count}, dtype, device::MemoryCategory::optimizer));
    kernel::AdamStep step;
    step.lr = spec.at("lr");
    step.weight_decay = spec.at("weight_decay");
    for (int64_t t = 1; t <= spec.at("steps"); ++t) {
      result["curve"].push_back(step_gradients());
      step.t = t;
      size_t i = 0;
      for (auto& unit : model->parameters().units()) {
        kernel::StepBuffers buffers;
        buffers.master = unit.values.data();
        buffers.grad = unit.grads.data();
        buffers.m = moments[i].first.data();
        buffers.v = moments[i++].second.data();
        buffers.count = unit.count;
        buffers.grad_type = dtype;
        kernel::adam_step(buffers, step, context.stream);
      }
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: parity_model DIR\n";
    return 2;
  }
  try {
    ModelCase model_case{argv[1]};
    model_case.load();
    nn::ForwardContext pass;
    pass.tape = &model_case.tape;
    write_tensor(model_case.dir + "/logits", model_case.model->logits_of(pass, model_case.batch));
    Json result;
    result["parameters"] = model_case.model->parameters().count();
    result["loss"] = model_case.step_gradients();
    for (const nn::Parameter& p : model_case.model->parameters().all())
      write_tensor(model_case.dir + "/grad." + p.name, p.weight.grad);
    model_case.train(result);
    std::ofstream(model_case.dir + "/result.json") << result;
  } catch (const std::exception& error) {
    std::cerr << "parity_model: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
