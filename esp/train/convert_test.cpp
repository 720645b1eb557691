// Conversion between Espalier checkpoints and Hugging Face folders must keep every bit in both directions. Other tests:
// vocabulary padding, settings files, rejected inputs, and runs that start from a Hugging Face folder.
#include "esp/train/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <variant>

#include "esp/base/error.h"
#include "esp/ckpt/checkpoint.h"
#include "esp/ckpt/hf_folder.h"
#include "esp/kernel/elementwise.h"
#include "esp/model/hf_config.h"
#include "esp/model/model.h"
#include "esp/model/testing.h"
#include "esp/obs/file.h"
#include "esp/obs/temporary_folder.h"
#include "esp/train/engine.h"
#include "esp/train/run_keys.h"
#include "esp/train/snapshot.h"
#include "esp/train/trained_model.h"

namespace esp::train {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;

template <typename E = UsageError, typename F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return "accepted";
}

std::vector<char> bytes_of(const tensor::Tensor& x) {
  const auto* data = static_cast<const char*>(x.data());
  return {data, data + x.bytes()};
}

std::map<std::string, std::vector<char>> parameters_of(TrainedModel& loaded) {
  std::map<std::string, std::vector<char>> all;
  for (const nn::Parameter& p : loaded.model->parameters().all()) all[p.name] = bytes_of(p.weight.value);
  return all;
}

struct ConvertTest : testing::Test {
  obs::TemporaryFolder folder;

  // Writes a checkpoint of a random model and returns its path. Every parameter differs from its initial value.
  std::string checkpoint(model::ModelConfig config, DType dtype = DType::f32, const std::string& tokenizer = "byte") {
    model::TestModel t(config, dtype);
    uint64_t stream = 0;
    for (nn::Parameter& p : t.model->parameters().all())
      kernel::fill_normal(p.weight.value.data(), 0, 0.3, 5, stream++, 0, p.count(), dtype, t.context.stream);
    RunConfig run;
    run.model = model_section(config);
    run.data.tokenizer = tokenizer;
    run.train.precision = precision_name(dtype);
    ckpt::Snapshot snapshot;
    snapshot.step = 12;
    for (const nn::Parameter& p : t.model->parameters().all()) snapshot.model.push_back(whole_slice(p));
    snapshot.state = {{"step", 12}, {"run", to_toml(run)}};
    return ckpt::save(folder / "made", snapshot);
  }
};

model::ModelConfig tied_llama() {
  model::ModelConfig config = model::preset("llama-tiny").config;
  config.tie_embeddings = true;
  config.kv_heads = 0;
  config.bias = true;
  return config;
}
model::ModelConfig untied_gpt() {
  model::ModelConfig config = model::preset("gpt-tiny").config;
  config.tie_embeddings = false;
  config.ffn = 80;
  return config;
}
model::ModelConfig hidden_bert() {
  model::ModelConfig config = model::preset("bert-tiny").config;
  config.headless = config.pooler = true;
  return config;
}

model::ModelConfig untied_bert() {
  model::ModelConfig config = model::preset("bert-tiny").config;
  config.tie_embeddings = false;
  return config;
}

// The same configuration with the default ffn = 4·dim filled in, so that default and explicit value compare equal.
model::ModelConfig spelt_out(model::ModelConfig config) {
  config.ffn = config.ffn_or_default();
  return config;
}

struct RoundTrip : ConvertTest, testing::WithParamInterface<std::pair<const char*, model::ModelConfig>> {};

TEST_P(RoundTrip, KeepsEveryBit) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const std::string source = checkpoint(GetParam().second, dtype);
    const std::string tag(name_of(dtype));
    convert(source, folder / ("hf" + tag));
    convert(folder / ("hf" + tag), folder / ("back" + tag));
    const auto first = load_model(source, {1, {}}), direct = load_model(folder / ("hf" + tag), {1, {}}),
               back = load_model(folder / ("back" + tag), {1, {}});
    EXPECT_EQ(parameters_of(*first), parameters_of(*back)) << tag;
    EXPECT_EQ(parameters_of(*first), parameters_of(*direct)) << tag;
    EXPECT_EQ(spelt_out(first->model->config()), spelt_out(back->model->config())) << tag;
    EXPECT_EQ(back->config.train.precision, first->config.train.precision);
    EXPECT_TRUE(direct->unused_tensors.empty());
    // The Hugging Face folder also stays equal after conversion to a checkpoint and back.
    convert(folder / ("back" + tag), folder / ("hf2" + tag));
    for (const char* file : {"model.safetensors", "config.json", "tokenizer.json"})
      EXPECT_EQ(obs::read_whole_file(folder / ("hf" + tag) + "/" + file, 1 << 24),
                obs::read_whole_file(folder / ("hf2" + tag) + "/" + file, 1 << 24))
          << file;
  }
}

INSTANTIATE_TEST_SUITE_P(Archs, RoundTrip,
                         testing::Values(std::pair{"gpt2", model::preset("gpt-tiny").config},
                                         std::pair{"gpt2_untied", untied_gpt()},
                                         std::pair{"llama_grouped", model::preset("llama-tiny").config},
                                         std::pair{"llama_tied", tied_llama()},
                                         std::pair{"llama_linear", model::scaled_llama(kernel::RopeScaling::linear)},
                                         std::pair{"llama_yarn", model::scaled_llama(kernel::RopeScaling::yarn)},
                                         std::pair{"llama_llama3", model::scaled_llama(kernel::RopeScaling::llama3)},
                                         std::pair{"bert", model::preset("bert-tiny").config},
                                         std::pair{"bert_untied", untied_bert()},
                                         std::pair{"bert_classes", model::preset("bert-tiny-classifier").config},
                                         std::pair{"bert_hidden", hidden_bert()}),
                         [](const auto& row) { return std::string(row.param.first); });

TEST_F(ConvertTest, SplitsLargeModelsIntoFiles) {
  const std::string source = checkpoint(model::preset("llama-tiny").config);
  ConvertOptions options;
  options.shard_bytes = 40000;
  convert(source, folder / "hf", options);
  EXPECT_TRUE(fs::exists(folder / "hf/model.safetensors.index.json"));
  EXPECT_FALSE(fs::exists(folder / "hf/model.safetensors"));
  const auto first = load_model(source, {1, {}}), read = load_model(folder / "hf", {1, {}});
  EXPECT_EQ(parameters_of(*first), parameters_of(*read));
}

TEST_F(ConvertTest, OmitsTiedHeadAndTransposesLlamaWeights) {
  convert(checkpoint(model::preset("gpt-tiny").config), folder / "hf");
  const ckpt::HfFolder hf(folder / "hf");
  EXPECT_FALSE(hf.find("lm_head.weight"));
  EXPECT_EQ(hf.find("transformer.h.0.attn.c_attn.weight")->entry->shape, (std::vector<int64_t>{32, 96}));
  convert(checkpoint(model::preset("llama-tiny").config), folder / "llama");
  const ckpt::HfFolder llama(folder / "llama");
  EXPECT_TRUE(llama.find("lm_head.weight"));
  EXPECT_EQ(llama.find("model.layers.0.self_attn.k_proj.weight")->entry->shape, (std::vector<int64_t>{16, 32}));
  EXPECT_EQ(llama.find("model.layers.0.mlp.up_proj.weight")->entry->shape, (std::vector<int64_t>{88, 32}));
}

TEST_F(ConvertTest, RemovesVocabularyPadding) {
  for (const char* name : {"gpt-tiny", "llama-tiny", "bert-tiny"}) {
    model::ModelConfig config = model::preset(name).config;
    config.vocab = 320;
    const std::string source = checkpoint(config), hf = folder / name;
    const Conversion done = convert(source, hf);
    EXPECT_THAT(done.notes, Contains(HasSubstr("from 320 rows to the 257")));
    const auto first = load_model(source, {1, {}}), read = load_model(hf, {1, {}});
    EXPECT_EQ(read->config.model.vocab, 257);
    auto& padded = first->model->parameters();
    for (const nn::Parameter& p : read->model->parameters().all()) {
      const std::vector<char> ours = bytes_of(p.weight.value);
      EXPECT_EQ(std::memcmp(ours.data(), padded.find(p.name).weight.value.data(), ours.size()), 0) << p.name;
    }
  }
}

TEST_F(ConvertTest, KeepsTheDtypeByDefault) {
  const std::string source = checkpoint(model::preset("gpt-tiny").config, DType::bf16);
  convert(source, folder / "as_stored");
  EXPECT_EQ(ckpt::HfFolder(folder / "as_stored").find("transformer.wte.weight")->entry->dtype, DType::bf16);
  EXPECT_THAT(obs::read_whole_file(folder / "as_stored/config.json", 1 << 20),
              HasSubstr(R"("torch_dtype": "bfloat16")"));
  convert(source, folder / "wide", {"hf", "fp32", 1 << 30, 1});
  EXPECT_EQ(ckpt::HfFolder(folder / "wide").find("transformer.wte.weight")->entry->dtype, DType::f32);
  // Conversion from bf16 to fp32 and back to bf16 loses nothing.
  convert(folder / "wide", folder / "narrow", {"hf", "bf16", 1 << 30, 1});
  EXPECT_EQ(obs::read_whole_file(folder / "narrow/model.safetensors", 1 << 24),
            obs::read_whole_file(folder / "as_stored/model.safetensors", 1 << 24));
}

TEST_F(ConvertTest, OverwritesNothingAndLeavesNoPartialOutput) {
  const std::string source = checkpoint(model::preset("gpt-tiny").config);
  fs::create_directory(folder / "full");
  obs::write_whole_file(folder / "full/mine", "x");
  EXPECT_THAT(refusal([&] { convert(source, folder / "full"); }), HasSubstr("not empty"));
  EXPECT_THAT(refusal([&] { convert(source, folder / "full/mine"); }), HasSubstr("got a file"));
  fs::create_directory(folder / "empty");
  convert(source, folder / "empty/");
  EXPECT_TRUE(fs::exists(folder / "empty/config.json"));

  model::ModelConfig no_form = model::preset("gpt-tiny").config;
  no_form.bias = false;
  EXPECT_THAT(refusal([&] { convert(checkpoint(no_form), folder / "never"); }), HasSubstr("biases"));
  for (const auto& entry : fs::directory_iterator(folder.path()))
    EXPECT_THAT(entry.path().filename().string(), testing::Not(testing::StartsWith("never")));
  EXPECT_THAT(refusal([&] { convert(source, folder / "x", {"hg", "", 1, 1}); }), HasSubstr("hf, espalier"));
  EXPECT_THAT(refusal([&] { convert(source, folder / "x", {"", "fp8", 1, 1}); }), HasSubstr("fp32, bf16"));
  EXPECT_THAT(refusal<IoError>([&] { convert(folder / "nothing", folder / "x"); }),
              HasSubstr("no complete checkpoint"));
}

// Reads the tensors of a folder, calls change(tensors) and writes them again.
void edit(const std::string& path, const std::function<void(std::vector<ckpt::DeferredTensor>&)>& change) {
  std::vector<ckpt::DeferredTensor> tensors;
  {
    const ckpt::HfFolder hf(path);
    for (const std::string& name : hf.names()) {
      const auto found = *hf.find(name);
      const std::vector<std::byte> bytes = found.bytes();
      tensors.push_back({name, found.entry->dtype, found.entry->shape,
                         [bytes](std::byte* to) { std::copy(bytes.begin(), bytes.end(), to); }});
    }
  }
  change(tensors);
  fs::remove(path + "/model.safetensors");
  ckpt::write_hf_tensors(path, tensors, 1 << 30);
}

// Adds a copy of tensor `from` under the name `name`; with `changed`, one value of the copy differs.
void copy_tensor(std::vector<ckpt::DeferredTensor>& tensors, const std::string& from, const std::string& name,
                 bool changed) {
  ckpt::DeferredTensor copy = *std::find_if(tensors.begin(), tensors.end(), [&](auto& t) { return t.name == from; });
  copy.name = name;
  copy.make = [make = copy.make, changed](std::byte* to) {
    make(to);
    if (changed) to[3] ^= std::byte{1};
  };
  tensors.push_back(std::move(copy));
}

TEST_F(ConvertTest, AcceptsTiedHeadUnderBothNamesIfValuesAreEqual) {
  const struct {
    const char *preset, *tensor, *copy;
  } rows[] = {{"gpt-tiny", "transformer.wte.weight", "lm_head.weight"},
              {"bert-tiny", "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"},
              {"bert-tiny", "cls.predictions.bias", "cls.predictions.decoder.bias"}};
  int number = 0;
  for (const auto& row : rows) {
    const std::string source = checkpoint(model::preset(row.preset).config), hf = folder / std::to_string(number++);
    convert(source, hf);
    const auto expected = parameters_of(*load_model(source, {1, {}}));
    edit(hf, [&](auto& tensors) { copy_tensor(tensors, row.tensor, row.copy, false); });
    EXPECT_EQ(parameters_of(*load_model(hf, {1, {}})), expected) << row.copy;
    EXPECT_TRUE(load_model(hf, {1, {}})->unused_tensors.empty());
    edit(hf, [&](auto& tensors) { std::erase_if(tensors, [&](auto& t) { return t.name == row.tensor; }); });
    EXPECT_EQ(parameters_of(*load_model(hf, {1, {}})), expected) << row.copy;
    edit(hf, [&](auto& tensors) { copy_tensor(tensors, row.copy, row.tensor, true); });
    EXPECT_THAT(refusal<IoError>([&] {
                  load_model(hf, {1, {}});
                }),
                AllOf(HasSubstr(fmt::format("{} differs from {}", row.copy, row.tensor)),
                      HasSubstr("tie_word_embeddings = true")));
  }
}

TEST_F(ConvertTest, WritesTheDecoderBiasOfAnUntiedBert) {
  const std::string source = checkpoint(untied_bert());
  convert(source, folder / "hf");
  const auto expected = parameters_of(*load_model(source, {1, {}}));
  const std::string of = "cls.predictions.decoder.bias", other = "cls.predictions.bias";
  EXPECT_TRUE(ckpt::HfFolder(folder / "hf").find(of) && ckpt::HfFolder(folder / "hf").find(other));
  edit(folder / "hf", [&](auto& tensors) {
    std::erase_if(tensors, [&](auto& t) { return t.name == other; });
    copy_tensor(tensors, of, other, true);
  });
  EXPECT_EQ(parameters_of(*load_model(folder / "hf", {1, {}})), expected);
  edit(folder / "hf", [&](auto& tensors) {  // the form that transformers wrote before version 5
    std::erase_if(tensors, [&](auto& t) { return t.name == other; });
    copy_tensor(tensors, of, other, false);
    std::erase_if(tensors, [&](auto& t) { return t.name == of; });
  });
  EXPECT_EQ(parameters_of(*load_model(folder / "hf", {1, {}})), expected);
}

TEST_F(ConvertTest, AcceptsTensorNamesWithAndWithoutPrefix) {
  for (const char* name : {"gpt-tiny", "llama-tiny", "bert-tiny"}) {
    const std::string source = checkpoint(model::preset(name).config), hf = folder / name;
    convert(source, hf);
    edit(hf, [](auto& tensors) {
      for (auto& tensor : tensors)
        for (const std::string prefix : {"transformer.", "model.", "bert."})
          if (tensor.name.starts_with(prefix)) tensor.name = tensor.name.substr(prefix.size());
    });
    EXPECT_FALSE(ckpt::HfFolder(hf).find("transformer.wte.weight"));
    const auto first = load_model(source, {1, {}}), read = load_model(hf, {1, {}});
    EXPECT_EQ(parameters_of(*first), parameters_of(*read)) << name;
  }
}

TEST_F(ConvertTest, ReportsMissingAndUnusedTensors) {
  convert(checkpoint(model::preset("llama-tiny").config), folder / "hf");
  const auto stranger = [](const std::string& name) {
    return ckpt::DeferredTensor{name, DType::f32, {1}, [](std::byte* to) { std::memset(to, 0, 4); }};
  };
  edit(folder / "hf", [&](auto& tensors) {
    tensors.push_back(stranger("model.layers.0.adapter.weight"));
    tensors.push_back(stranger("model.layers.0.self_attn.rotary_emb.inv_freq"));  // older folders contain this tensor
  });
  EXPECT_EQ(load_model(folder / "hf", {1, {}})->unused_tensors,
            std::vector<std::string>{"model.layers.0.adapter.weight"});
  const Conversion done = convert(folder / "hf", folder / "c");
  EXPECT_THAT(done.notes, Contains(HasSubstr("model.layers.0.adapter.weight")));

  edit(folder / "hf", [](auto& tensors) {
    std::erase_if(tensors, [](const auto& t) { return t.name == "model.layers.1.mlp.up_proj.weight"; });
  });
  EXPECT_THAT(refusal<IoError>([&] {
                load_model(folder / "hf", {1, {}});
              }),
              HasSubstr("no tensor model.layers.1.mlp.up_proj.weight"));
}

TEST_F(ConvertTest, ErrorNamesTensorOfAnotherShape) {
  convert(checkpoint(model::preset("gpt-tiny").config), folder / "hf");
  std::string config = obs::read_whole_file(folder / "hf/config.json", 1 << 20);
  const std::string was = R"("n_positions": 32)";
  config.replace(config.find(was), was.size(), R"("n_positions": 31)");
  obs::write_whole_file(folder / "hf/config.json", config);
  EXPECT_THAT(refusal<IoError>([&] {
                load_model(folder / "hf", {1, {}});
              }),
              AllOf(HasSubstr("transformer.wpe.weight has shape [32, 32]"), HasSubstr("[31, 32]")));
}

struct ModelInitTest : ConvertTest {
  std::string run_file(const std::string& model, const std::string& more = "") {
    obs::write_whole_file(folder / "text.txt", std::string(4000, 'a') + std::string(4000, 'b'));
    const std::string path = folder / "run.toml";
    obs::write_whole_file(path, fmt::format("[run]\ndir = \"{0}/run\"\nthreads = 1\n[model]\n{1}\n[data]\ntrain = "
                                            "\"{0}/text.txt\"\n[train]\nsteps = 3\nglobal_batch = 2\n{2}\n",
                                            folder.path(), model, more));
    return path;
  }
  const Log quiet{LogLevel::off, -1};
};

TEST_F(ModelInitTest, ReadsShapeAndTokenizerFromModelInit) {
  convert(checkpoint(model::preset("llama-tiny").config), folder / "hf");
  const RunConfig config = read_run_config(run_file("init = \"" + folder / "hf" + "\"\ndropout = 0.1"), {});
  EXPECT_EQ(config.model.arch, "llama");
  EXPECT_EQ(config.model.ffn, 88);
  EXPECT_EQ(config.model.dropout, 0.1);
  EXPECT_EQ(config.data.tokenizer, folder / "hf");
  EXPECT_THAT(refusal([&] { read_run_config(run_file("arch = \"gpt\"\ninit = \"" + folder / "hf" + "\""), {}); }),
              HasSubstr("is a llama"));
  // After the folder was removed, the resolved run file can still be read.
  fs::remove_all(folder / "hf");
  EXPECT_EQ(parse_run_config(to_toml(config), "again", {}).model.ffn, 88);
}

std::map<std::string, std::vector<char>> parameters_of(Engine& engine) {
  std::map<std::string, std::vector<char>> all;
  for (const nn::Parameter& p : engine.model().parameters().all()) all[p.name] = bytes_of(p.weight.value);
  return all;
}

TEST_F(ModelInitTest, StartsFromConvertedCheckpointWithZeroMoments) {
  convert(checkpoint(model::preset("gpt-tiny").config), folder / "hf");
  convert(folder / "hf", folder / "start", {"", "bf16", 1 << 30, 1});
  RunConfig config = read_run_config(run_file("init = \"" + folder / "start" + "\"", "precision = \"bf16\""), {});
  Engine engine(config, quiet);
  const auto loaded = load_model(folder / "start", {1, {}});
  EXPECT_NE(parameters_of(engine), parameters_of(*loaded));
  restore(engine, config, *ckpt::open_checkpoint(folder / "start"));
  EXPECT_EQ(parameters_of(engine), parameters_of(*loaded));
  EXPECT_EQ(engine.num_steps(), 0);
  for (const optim::OptimizerState& state : engine.optimizer().states()) {
    const double first = tensor::item(state.values);
    if (state.slot != "master") {
      EXPECT_EQ(first, 0) << state.slot;
    } else if (state.range.unit == 0) {
      EXPECT_EQ(first, tensor::item(loaded->model->parameters().all().front().weight.value));
    }
  }
  EXPECT_TRUE(std::isfinite(engine.step().loss));
}

TEST_F(ModelInitTest, ReadsMasterWeightsAsFp32) {
  RunConfig config = read_run_config(run_file("preset = \"gpt-tiny\"\nvocab = 257", "precision = \"bf16\""), {});
  Engine engine(config, quiet);
  engine.step();
  const std::string path = ckpt::save(folder / "made", make_snapshot(engine, config));
  const auto wide = load_model(path, {1, DType::f32});
  int num_masters = 0;
  for (const optim::OptimizerState& state : engine.optimizer().states()) {
    if (state.slot != "master") continue;
    ++num_masters;
    const auto& unit = wide->model->parameters().units()[static_cast<size_t>(state.range.unit)];
    EXPECT_EQ(bytes_of(unit.values), bytes_of(state.values)) << unit.name;
  }
  EXPECT_EQ(num_masters, 4);  // stem, two blocks, head
}

TEST_F(ModelInitTest, AddsNewHeadToPretrainedEncoder) {
  convert(checkpoint(hidden_bert()), folder / "hf");
  RunConfig config = read_run_config(run_file("init = \"" + folder / "hf" + "\"\nseq_len = 20"), {});
  EXPECT_FALSE(config.model.headless || config.model.pooler);
  Engine engine(config, quiet);
  const auto fresh = load_pretrained(engine.model(), folder / "hf", engine.context().stream);
  EXPECT_EQ(fresh, (std::vector<std::string>{"transform.weight", "transform.bias", "transform_norm.weight",
                                             "transform_norm.bias", "head.bias"}));
  const auto source = load_model(folder / "hf", {1, {}});
  auto theirs = parameters_of(*source), ours = parameters_of(engine);
  EXPECT_EQ(ours.at("blocks.1.mlp.down.weight"), theirs.at("blocks.1.mlp.down.weight"));
  // A model with a smaller seq_len uses the first position embeddings of the folder.
  theirs.at("positions.weight").resize(20 * 32 * 4);
  EXPECT_EQ(ours.at("positions.weight"), theirs.at("positions.weight"));
  EXPECT_TRUE(std::isfinite(engine.step().loss));

  // A checkpoint of the same encoder gives the same parameters.
  convert(folder / "hf", folder / "checkpoint");
  Engine other(config, quiet);
  EXPECT_EQ(load_pretrained(other.model(), folder / "checkpoint", other.context().stream), fresh);
  Engine direct(config, quiet);
  load_pretrained(direct.model(), folder / "hf", direct.context().stream);
  EXPECT_EQ(parameters_of(other), parameters_of(direct));
}

TEST_F(ModelInitTest, KeepsPretrainedPoolerInClassifier) {
  convert(checkpoint(hidden_bert()), folder / "hf");
  obs::write_whole_file(folder / "items.jsonl", "{\"text\": \"a\", \"label\": 0}\n{\"text\": \"b\", \"label\": 1}\n");
  RunConfig config = read_run_config(run_file("init = \"" + folder / "hf" + "\"\nclasses = 2"),
                                     {"data.train=" + folder / "items.jsonl"});
  Engine engine(config, quiet);
  EXPECT_EQ(load_pretrained(engine.model(), folder / "hf", engine.context().stream),
            (std::vector<std::string>{"classifier.weight", "classifier.bias"}));
  EXPECT_TRUE(std::isfinite(engine.step().loss));
}

// Returns a valid value, as text, for a key of [model] or [model.moe]. It differs from the current value.
std::string another_value(const Field& field) {
  static const std::map<std::string_view, std::string_view> kWords = {
      {"arch", "t5"}, {"activation", "relu"}, {"norm", "rms"}, {"positions", "none"}, {"rope_scaling", "linear"}};
  if (const auto* flag = std::get_if<bool*>(&field.value)) return **flag ? "false" : "true";
  if (const auto* count = std::get_if<int64_t*>(&field.value))
    return std::to_string(field.key == "heads"                              ? 2 * **count
                          : field.key == "dim"                              ? 2 * **count
                          : field.key == "kv_heads" || field.key == "top_k" ? 1
                                                                            : **count + 3);
  if (const auto* number = std::get_if<double*>(&field.value)) return fmt::format("{}", **number + 0.25);
  const auto at = kWords.find(field.key);
  return at == kWords.end() ? "" : std::string(at->second);
}

void set_value(const Field& field, const std::string& value) {
  if (auto* flag = std::get_if<bool*>(&field.value)) **flag = value == "true";
  if (auto* count = std::get_if<int64_t*>(&field.value)) **count = std::stoll(value);
  if (auto* number = std::get_if<double*>(&field.value)) **number = std::stod(value);
  if (auto* word = std::get_if<std::string*>(&field.value)) **word = value;
}

RunConfig shape_of(const std::string& preset, const std::map<std::string, std::string>& more) {
  RunConfig config;
  config.model = model_section(model::preset(preset).config);
  config.model.vocab = 300;
  for (const Field& field : fields(config))
    if (const auto at = more.find(field.name()); at != more.end()) set_value(field, at->second);
  return config;
}

std::string text_of(RunConfig config, const std::string& name) {
  config.model.kv_heads = config.model.kv_heads ? config.model.kv_heads : config.model.heads;
  config.model.ffn = config.model.ffn ? config.model.ffn : 4 * config.model.dim;
  for (const Field& field : fields(config))
    if (field.name() == name) return field.value_text();
  return "";
}

TEST(HfOptions, ConvertsOrRejectsEveryModelKey) {
  const std::map<std::string, RunConfig> shapes = {
      {"gpt", shape_of("gpt2-124m", {})},
      {"llama", shape_of("llama-tiny", {})},
      {"linear", shape_of("llama-tiny", {{"model.rope_scaling", "linear"}, {"model.rope_factor", "2"}})},
      {"yarn",
       shape_of("llama-tiny",
                {{"model.rope_scaling", "yarn"}, {"model.rope_factor", "2"}, {"model.rope_original_seq_len", "32"}})},
      {"llama3",
       shape_of("llama-tiny",
                {{"model.rope_scaling", "llama3"}, {"model.rope_factor", "2"}, {"model.rope_original_seq_len", "32"}})},
      {"bert", shape_of("bert-tiny", {})},
      {"classifier", shape_of("bert-tiny", {{"model.classes", "3"}, {"model.pooler", "true"}})},
      {"experts", shape_of("gpt2-124m", {{"model.moe.experts", "4"}})}};
  // Keys that are not part of a trained model: they only set defaults of other keys or the initial weights.
  const std::set<std::string> no_options = {"model.preset", "model.init", "model.zero_positions"};
  std::set<std::string> keys, carried, rejected;
  for (const auto& [name, shape] : shapes) {
    RunConfig all = normalised(shape);
    const std::vector<Field> listed = fields(all);
    for (size_t i = 0; i < listed.size(); ++i) {
      const std::string key = listed[i].name();
      if (!key.starts_with("model.") || no_options.contains(key)) continue;
      keys.insert(key);
      if (!is_read(listed, listed[i])) continue;
      RunConfig changed = shape;
      const std::string value = another_value(listed[i]);
      ASSERT_FALSE(value.empty()) << key << ": add another valid value of this key to another_value()";
      set_value(fields(changed)[i], value);
      Json json;
      try {
        json = model::hf_config(model_config(changed.model));
      } catch (const UsageError&) {
        rejected.insert(key);
        continue;
      }
      carried.insert(key);
      RunConfig back;
      back.model = model_section(model::config_from_hf(json));
      EXPECT_EQ(text_of(back, key), text_of(changed, key)) << name << ": " << key << " is lost: " << json.dump();
    }
  }
  for (const std::string& key : keys)
    EXPECT_TRUE(carried.contains(key) || rejected.contains(key)) << key << " was not tested: add a shape that reads it";
  EXPECT_THAT(carried, IsSupersetOf({"model.layers", "model.rope_beta_fast", "model.classes", "model.dropout"}));
  EXPECT_THAT(rejected, IsSupersetOf({"model.moe.experts", "model.moe.z_loss", "model.post_norm", "model.positions"}));
}

TEST(HfOptions, ErrorNamesRejectedKey) {
  model::ModelConfig config = model_config(shape_of("bert-tiny", {{"model.headless", "true"}}).model);
  EXPECT_THAT(refusal([&] { static_cast<void>(model::hf_config(config)); }),
              HasSubstr("model.pooler: cannot be stored in a Hugging Face folder"));
}

}  // namespace
}  // namespace esp::train
