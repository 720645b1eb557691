// Imports DeepSpeed configurations as they are used in practice, and checks every key.
#include "esp/train/deepspeed.h"

#include <gtest/gtest.h>

#include <map>

#include "esp/base/error.h"
#include "esp/train/run_config.h"

namespace esp::train {
namespace {

using Keys = std::map<std::string, std::string>;

Keys imported_keys(const DeepSpeedImport& imported) {
  Keys keys;
  for (const auto& one : imported.keys) keys[one.key] = one.value;
  return keys;
}
Keys ignored_keys(const DeepSpeedImport& imported) {
  Keys keys;
  for (const auto& one : imported.ignored) keys[one.from] = one.why;
  return keys;
}

std::string refusal(std::string_view json, int64_t ranks = 0) {
  try {
    import_deepspeed(json, "ds.json", ranks);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

struct Case {
  const char* name;
  const char* json;
  int64_t ranks;
  Keys keys;                         // expected keys and their values
  std::vector<std::string> ignored;  // all ignored keys that are expected
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

const Case kCases[] = {
    {"Stage1Bf16",
     R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
         "bf16": {"enabled": true}, "zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8},
         "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
         "gradient_clipping": 1.0, "steps_per_print": 10, "wall_clock_breakdown": false})",
     8,
     {{"train.global_batch", "64"},
      {"train.micro_batch", "4"},
      {"train.precision", "\"bf16\""},
      {"sync.method", "\"zero1\""},
      {"sync.bucket_mb", "953.67431640625"},
      {"train.optimizer", "\"adamw\""},
      {"train.lr", "3e-05"},
      {"train.beta2", "0.95"},
      {"train.weight_decay", "0.1"},
      {"train.clip", "1.0"},
      {"train.schedule", "\"constant\""},
      {"log.every", "10"}},
     {}},
    {"Stage2Fp16OnTheHost",  // the example in the Hugging Face documentation, with values instead of "auto"
     R"({"fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16,
                  "hysteresis": 2, "min_loss_scale": 1},
         "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "weight_decay": 3e-7}},
         "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 2e-3,
                                                      "warmup_num_steps": 50}},
         "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true},
                               "allgather_partitions": true, "allgather_bucket_size": 2e8, "overlap_comm": true,
                               "reduce_scatter": true, "reduce_bucket_size": 2e8, "contiguous_gradients": true},
         "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1})",
     2,
     {{"train.precision", "\"fp16\""},
      {"train.optimizer", "\"adamw\""},  // DeepSpeed's Adam is decoupled (AdamW) by default
      {"train.lr", "0.002"},
      {"train.weight_decay", "3e-07"},
      {"train.beta2", "0.999"},
      {"train.clip", "0.0"},
      {"train.schedule", "\"constant\""},
      {"train.warmup", "50"},
      {"train.global_batch", "16"},
      {"train.micro_batch", "8"},
      {"sync.method", "\"zero2\""},
      {"sync.offload", "\"host\""}},
     {"fp16.loss_scale", "fp16.loss_scale_window", "fp16.initial_scale_power", "fp16.hysteresis", "fp16.min_loss_scale",
      "scheduler.params.warmup_min_lr", "zero_optimization.offload_optimizer.pin_memory",
      "zero_optimization.allgather_partitions", "zero_optimization.allgather_bucket_size",
      "zero_optimization.reduce_scatter", "zero_optimization.contiguous_gradients"}},
    {"Stage3WithAutoValues",
     R"({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"},
         "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                                   "weight_decay": "auto"}},
         "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                                                           "warmup_num_steps": 0, "total_num_steps": "auto"}},
         "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": "auto", "sub_group_size": 1e9,
                               "stage3_gather_16bit_weights_on_model_save": true},
         "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "train_batch_size": "auto",
         "train_micro_batch_size_per_gpu": "auto"})",
     0,
     {{"sync.method", "\"zero3\""},
      {"train.optimizer", "\"adamw\""},
      {"train.schedule", "\"linear\""},
      {"train.lr_floor", "0.0"},
      {"train.warmup", "0"},
      {"train.beta1", "0.9"}},
     {"fp16.enabled", "bf16.enabled", "optimizer.params.lr", "optimizer.params.betas", "optimizer.params.eps",
      "optimizer.params.weight_decay", "scheduler.params.warmup_min_lr", "scheduler.params.warmup_max_lr",
      "scheduler.params.total_num_steps", "zero_optimization.stage3_prefetch_bucket_size",
      "zero_optimization.sub_group_size", "zero_optimization.stage3_gather_16bit_weights_on_model_save",
      "gradient_accumulation_steps", "gradient_clipping", "train_batch_size", "train_micro_batch_size_per_gpu"}},
    {"Stage3OnNvme",
     R"({"train_batch_size": 32, "gradient_accumulation_steps": 4, "bf16": {"enabled": true},
         "zero_optimization": {"stage": 3,
           "offload_optimizer": {"device": "nvme", "nvme_path": "/local \"nvme\"", "buffer_count": 4, "fast_init": false},
           "offload_param": {"device": "cpu", "buffer_size": 1e8}},
         "aio": {"block_size": 262144, "queue_depth": 32}})",
     2,
     {{"train.micro_batch", "4"},
      {"sync.offload", "\"file\""},
      {"sync.offload_dir", R"("/local \"nvme\"")"},
      {"sync.offload_params", "\"host\""}},
     {"zero_optimization.offload_optimizer.buffer_count", "zero_optimization.offload_param.buffer_size", "aio"}},
    {"ZeroPlusPlusCosine",
     R"({"train_batch_size": 16, "seed": 7,
         "optimizer": {"type": "FusedAdam", "params": {"lr": 0.0006, "adam_w_mode": false, "bias_correction": true}},
         "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 1000, "warmup_num_steps": 100,
                                                            "cos_min_ratio": 0.1}},
         "zero_optimization": {"stage": 3, "zero_quantized_weights": true, "zero_hpz_partition_size": 8,
                               "zero_quantized_gradients": true},
         "communication_data_type": "bfp16", "tensorboard": {"enabled": true, "output_path": "logs/"}})",
     0,
     {{"train.optimizer", "\"adam\""},
      {"train.lr", "0.0006"},
      {"train.schedule", "\"cosine\""},
      {"train.lr_floor", "0.1"},
      {"train.steps", "1000"},
      {"train.warmup", "100"},
      {"sync.quantise", "\"qwz,hpz,qgz\""},
      {"sync.wire", "\"bf16\""},
      {"log.tensorboard", "true"},
      {"run.seed", "7"}},
     {"optimizer.params.bias_correction", "tensorboard.output_path"}},
    {"OneBitAdam",
     R"({"train_batch_size": 16, "optimizer": {"type": "OneBitAdam", "params": {"lr": 2e-4, "freeze_step": 400,
         "cuda_aware": false, "comm_backend_name": "nccl"}}})",
     4,
     {{"train.optimizer", "\"adamw\""},
      {"sync.compress", "\"sign\""},
      {"sync.feedback", "\"onebit_adam\""},
      {"sync.onebit_warmup", "400"}},
     {"optimizer.params.comm_backend_name"}},
    {"UnknownKeys",
     R"({"train_batch_size": 4, "optimizer": {"type": "Lamb", "params": {"lr": 11e-3, "max_coeff": 0.3}},
         "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-5}}, "gradient_cliping": 1.0,
         "zero_optimization": {"stage": 0, "offload_param": {"device": "cpu"}},
         "flops_profiler": {"enabled": false, "profile_step": 1}, "wandb": {"enabled": true, "team": "t"},
         "activation_checkpointing": {"partition_activations": true}, "my_own": {"deep": {"key": 3}}})",
     1,
     {{"train.global_batch", "4"}},
     {"optimizer", "optimizer.params.max_coeff", "scheduler", "scheduler.params.cycle_min_lr", "gradient_cliping",
      "zero_optimization.offload_param", "wandb", "activation_checkpointing", "my_own.deep.key"}},
};

class DeepSpeedCases : public testing::TestWithParam<Case> {};

TEST_P(DeepSpeedCases, ImportsOrReportsEveryKey) {
  const Case& c = GetParam();
  const DeepSpeedImport imported = import_deepspeed(c.json, "ds.json", c.ranks);
  const Keys got = imported_keys(imported);
  for (const auto& [key, value] : c.keys) EXPECT_EQ(got.contains(key) ? got.at(key) : "nothing", value) << key;
  const Keys rest = ignored_keys(imported);
  for (const std::string& key : c.ignored)
    EXPECT_TRUE(rest.contains(key)) << key << " was neither imported nor reported";
  for (const auto& [key, why] : rest)
    EXPECT_NE(std::find(c.ignored.begin(), c.ignored.end(), key), c.ignored.end()) << key << ": " << why;
}

TEST_P(DeepSpeedCases, RunFileContainsImportedValues) {
  const DeepSpeedImport imported = import_deepspeed(GetParam().json, "ds.json", GetParam().ranks);
  const std::string file = to_run_file(imported, "ds.json", "");
  const std::vector<std::string> given = {"train.steps=5000"};
  const RunConfig config = parse_run_config(file, "run.toml", given);
  std::vector<std::string> overrides = imported.overrides();
  overrides.push_back(given[0]);
  EXPECT_EQ(to_toml(config), to_toml(parse_run_config("", "none", overrides)));
  for (const auto& one : imported.ignored)
    EXPECT_NE(file.find("#   " + one.from + ": "), std::string::npos) << one.from;
  for (const std::string& one : imported.missing) EXPECT_NE(file.find("#   " + one), std::string::npos) << one;
}

INSTANTIATE_TEST_SUITE_P(Files, DeepSpeedCases, testing::ValuesIn(kCases),
                         [](const testing::TestParamInfo<Case>& one) { return one.param.name; });

TEST(DeepSpeedImport, OverridesABaseRunFile) {
  const DeepSpeedImport imported =
      import_deepspeed(R"({"train_batch_size": 6, "zero_optimization": {"stage": 2}})", "ds", 0);
  const std::string file = to_run_file(imported, "ds", "[model]\npreset = \"gpt2-124m\"\n[train]\nsteps = 7\n");
  const RunConfig config = parse_run_config(file, "run.toml", {});
  EXPECT_EQ(config.model.preset, "gpt2-124m");
  EXPECT_EQ(config.train.steps, 7);
  EXPECT_EQ(config.train.global_batch, 6);
  EXPECT_EQ(config.sync.method, "zero2");
  EXPECT_EQ(file.find("Still needed"), std::string::npos);
}

TEST(DeepSpeedImport, SuggestsTheNearestKey) {
  const DeepSpeedImport imported = import_deepspeed(R"({"gradient_cliping": 1.0})", "ds", 0);
  EXPECT_EQ(ignored_keys(imported).at("gradient_cliping"), "unknown DeepSpeed key; did you mean gradient_clipping?");
}

TEST(DeepSpeedImport, RefusesContradictoryValues) {
  const auto says = [](std::string_view json, std::string_view words, int64_t ranks = 0) {
    EXPECT_NE(refusal(json, ranks).find(words), std::string::npos) << json << ": " << refusal(json, ranks);
  };
  says(R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2})",
       "got 64; expected 4 × 2 × 4", 4);
  says(R"({"train_batch_size": 10, "gradient_accumulation_steps": 4})", "expected a multiple of 4 × 2", 2);
  says(R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})", "expected at most one of them");
  says(R"({"zero_optimization": {"stage": 4}})", "zero_optimization.stage: got 4; expected 0 to 3");
  says(R"({"zero_optimization": 3})", "zero_optimization: got 3; expected an object");
  says(R"({"train_batch_size": 2.5})", "expected an integer");
  says(R"({"train_batch_size": 0})", "expected an integer >= 1");
  says(R"({"fp16": {"enabled": "yes"}})", "expected true or false");
  says(R"({"optimizer": {"type": "Adam", "params": {"betas": [0.9]}}})", "expected two numbers");
  says(R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "gpu"}}})", "none, cpu or nvme");
  says(R"({"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 9, "total_num_steps": 5}}})",
       "at most total_num_steps");
  says(R"([1])", "expected a JSON object");
  says(R"({"seed": 1, "seed": 2})", "seed");
  says(R"({"seed": 1)", "ds.json");
}

TEST(DeepSpeedImport, KeepsUntrustedTextInComments) {
  const DeepSpeedImport imported = import_deepspeed("{\"a\\n[train]\\nsteps = 1\": 3}", "x\n[run]\nname = \"y\"", 0);
  const RunConfig config = parse_run_config(to_run_file(imported, "x\n[run]\nname = \"y\"", ""), "run.toml", {});
  EXPECT_EQ(config.train.steps, RunConfig().train.steps);
  EXPECT_EQ(config.run.name, "");
}

}  // namespace
}  // namespace esp::train
