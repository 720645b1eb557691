#include "esp/train/run_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/base/table.h"
#include "esp/model/model.h"
#include "esp/obs/file.h"
#include "esp/obs/temporary_folder.h"
#include "esp/train/engine_options.h"
#include "esp/train/run_keys.h"

namespace esp::train {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string refusal(std::string_view text, const std::vector<std::string>& overrides = {}) {
  try {
    parse_run_config(text, "run.toml", overrides);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(RunFile, DefaultsAreValid) {
  EXPECT_EQ(parse_run_config("", "run.toml", {}).train.optimizer, "adamw");
}

TEST(RunFile, NamesItsFolderAfterTheFileWhenNoNameIsGiven) {
  const obs::TemporaryFolder folder;
  const std::string path = folder / "shakespeare.char.toml";
  obs::write_whole_file(path, "[train]\nsteps = 3\n");
  EXPECT_EQ(run_folder_of(read_run_config(path, {})), "runs/shakespeare.char");
  EXPECT_EQ(run_folder_of(read_run_config(path, {"run.name=mine"})), "runs/mine");
  EXPECT_EQ(run_folder_of(read_run_config(path, {"run.name="})), "runs/shakespeare.char");
  EXPECT_EQ(read_run_config(path, {}).run.file, path);
}

TEST(RunFile, RoundTripsThroughToml) {
  const RunConfig config = parse_run_config(R"(
[run]
name = "a \"quoted\" name"
[data]
train = ["a.txt", "b*.jsonl"]
[train]
lr = 0.00060000000000000006
steps = 123456789012
)",
                                            "run.toml", {"model.preset=gpt2-124m", "model.layers=3"});
  EXPECT_EQ(config.model.dim, 768);
  EXPECT_EQ(config.model.layers, 3);
  const std::string text = to_toml(config);
  const RunConfig again = parse_run_config(text, "again", {});
  EXPECT_EQ(to_toml(again), text);
  EXPECT_EQ(again.data.train, (std::vector<std::string>{"a.txt", "b*.jsonl"}));
  EXPECT_EQ(again.train.lr, config.train.lr);
}

TEST(RunFile, RecognisesAResolvedFile) {
  const std::string text = to_toml(parse_run_config("", "f", {"model.preset=gpt2-124m", "train.lr=0.02"}));
  EXPECT_TRUE(is_resolved_text(text));
  EXPECT_FALSE(is_resolved_text("# mine\n" + text));
  EXPECT_FALSE(is_resolved_text("[train]\nsteps = 3\n"));
  EXPECT_FALSE(is_resolved_text("[train\n"));
}

TEST(RunFile, WritesTheShortestNumbersThatRoundTrip) {
  RunConfig config;
  config.train.lr = 3e-4;
  config.model.norm_eps = 1e-5;
  config.sync.bucket_mb = 25;
  config.train.max_minutes = 1e22;
  const std::string text = to_toml(config);
  for (const char* line :
       {"\nlr = 0.0003\n", "\nnorm_eps = 1e-05\n", "\nbucket_mb = 25.0\n", "\nmax_minutes = 1e+22\n"})
    EXPECT_THAT(text, HasSubstr(line));
  const RunConfig again = parse_run_config(text, "again", {});
  EXPECT_EQ(again.train.lr, 3e-4);
  EXPECT_EQ(again.model.norm_eps, 1e-5);
  EXPECT_EQ(again.sync.bucket_mb, 25);
  EXPECT_EQ(again.train.max_minutes, 1e22);
}

TEST(RunFile, RejectsValueWhereSectionIsExpected) {
  EXPECT_EQ(refusal("train = 3\n"),
            "run.toml:1:9: train: got a value; expected a section: [train] once, and its keys below it");
  EXPECT_THAT(refusal("[[train]]\nsteps = 3\n"), HasSubstr("train: got a value; expected a section: [train] once"));
  EXPECT_THAT(refusal("[model]\nmoe = 3\n"), HasSubstr("model.moe: got a value; expected a section: [model.moe] once"));
}

TEST(RunFile, RefusesAPresetOfAnotherArchitecture) {
  EXPECT_EQ(refusal("[model]\npreset = \"gpt2-124m\"\n", {"model.arch=llama"}),
            "model.arch = llama: model.preset = gpt2-124m is a gpt; remove one of them");
  EXPECT_EQ(parse_run_config("", "f", {"model.preset=gpt2-124m", "model.arch=gpt"}).model.arch, "gpt");
}

TEST(RunFile, ErrorNamesInvalidKey) {
  for (const char* wrong :
       {"checkpoint.keep=-1", "train.eval_every=-1", "train.eval_batches=0", "train.recompute_layers=99"}) {
    const std::string key(wrong, std::strchr(wrong, '='));
    EXPECT_THAT(refusal("", {wrong}), StartsWith(key + " = "));
  }
}

TEST(RunFile, AcceptsAutoOrStepCountAsInterval) {
  EXPECT_TRUE(parse_run_config("", "f", {}).checkpoint.every.automatic());
  EXPECT_TRUE(parse_run_config("[checkpoint]\nsnapshot_every = 3\n", "f", {"checkpoint.snapshot_every=auto"})
                  .checkpoint.snapshot_every.automatic());
  const StepInterval five = parse_run_config("", "f", {"checkpoint.every=5"}).checkpoint.every;
  EXPECT_TRUE(five.ends_at(10));
  EXPECT_FALSE(five.ends_at(11));
  EXPECT_FALSE(parse_run_config("", "f", {"checkpoint.every=0"}).checkpoint.every.ends_at(10));
  for (const char* steps : {"auto", "0", "7"}) {
    const RunConfig config = parse_run_config("", "f", {std::string("checkpoint.every=") + steps});
    EXPECT_EQ(parse_run_config(to_toml(config), "f", {}).checkpoint.every, config.checkpoint.every);
  }
  for (const char* wrong : {"-1", "never", "1.5", "true", "''"})
    EXPECT_THAT(refusal("", {std::string("checkpoint.every=") + wrong}), HasSubstr("auto or a number of steps"))
        << wrong;
}

TEST(RunFile, RejectsHugeSizesAndNamesLimit) {
  EXPECT_EQ(refusal("", {"model.layers=100000000"}), "model.layers = 100000000: must be from 1 to 10000");
  EXPECT_EQ(refusal("", {"model.dim=1000000000"}), "model.dim = 1000000000: must be from 1 to 1048576");
  EXPECT_THAT(refusal("", {"model.dim=-9000000000000000000"}), HasSubstr("1 to 1048576"));
  EXPECT_EQ(refusal("", {"model.dim=0"}), "model.dim = 0: must be from 1 to 1048576");
  EXPECT_EQ(refusal("", {"model.vocab=-1"}), "model.vocab = -1: must be from 0 to 2147483647");
  EXPECT_EQ(
      refusal("", {"train.global_batch=100000000000", "model.seq_len=32"}),
      "train.global_batch = 100000000000: must be <= 67108864 with model.seq_len = 32: at most 2^31 tokens per step");
  EXPECT_THAT(refusal("", {"model.layers=10000", "model.dim=1048576"}), HasSubstr("Make one of them smaller"));
  EXPECT_EQ(refusal("", {"model.layers=10000"}), "accepted");
}

TEST(RunFile, RejectsInitialWeightsOfZero) {
  EXPECT_THAT(refusal("", {"model.init_std=0"}), HasSubstr("model.init_std = 0: must be > 0"));
}

TEST(RunFile, ChecksEveryChoiceEvenIfUnused) {
  for (const char* key :
       {"comm.all_reduce", "comm.transport", "sync.method", "sync.accumulate", "sync.wire", "sync.topology",
        "sync.gossip_mode", "sync.ps_mode", "sync.push_order", "sync.aggregate", "sync.update", "sync.exchange",
        "sync.client_weights", "sync.average_over", "sync.server_ranks"})
    EXPECT_THAT(refusal("", {std::string(key) + "=rign"}), AllOf(HasSubstr("\"rign\""), HasSubstr("nown: "))) << key;
  EXPECT_THAT(refusal("", {"comm.transport=foo"}), HasSubstr("known: auto, shm, tcp, mpi, nccl"));
}

TEST(RunFile, RejectsAnOverrideOfSeveralKeys) {
  EXPECT_THAT(refusal("", {"train.steps=2\nlr=5"}), HasSubstr("Use one --set for each key"));
  EXPECT_THAT(refusal("", {"run.name=2\n[train]\nlr=5"}), HasSubstr("Use one --set for each key"));
  EXPECT_EQ(refusal("", {"data.train=[\"a\",\n\"b\"]"}), "accepted");
}

TEST(RunFile, ErrorSaysHowToWriteTheNumber) {
  for (const char* key : {"train.steps", "checkpoint.every"})
    EXPECT_THAT(refusal("", {std::string(key) + "=99999999999999999999"}),
                HasSubstr("The number is too large: the largest is 9223372036854775807"));
  EXPECT_THAT(refusal("", {"train.steps=-99999999999999999999"}), HasSubstr("The number is too small"));
  EXPECT_THAT(refusal("", {"train.lr=.001"}), HasSubstr("got '.001'; expected a finite number. Write the number "));
  EXPECT_THAT(refusal("", {"train.lr=.001"}), EndsWith("before the point: 0.001"));
  EXPECT_THAT(refusal("", {"train.lr=-.5"}), EndsWith("before the point: -0.5"));
  EXPECT_THAT(refusal("", {"train.lr=\"1e-3\""}), HasSubstr("without quotes, and with a digit before the point: 1e-3"));
  EXPECT_THAT(refusal("[train]\nsteps = \"20\"\n"), HasSubstr("without quotes"));
  for (const char* other : {"train.lr=1e-3x", "train.steps=ten", "run.deterministic=1"})
    EXPECT_THAT(refusal("", {other}), Not(HasSubstr("umber "))) << other;
}

TEST(RunFile, RefusesDeterministicRunsOfAsynchronousServers) {
  const auto refusal_of = [](const std::vector<std::string>& more, int world) -> std::string {
    std::vector<std::string> all = {"sync.method=ps", "run.deterministic=true"};
    all.insert(all.end(), more.begin(), more.end());
    try {
      parse_run_config("", "f", all).check_world(world);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal_of({"sync.ps_mode=async"}, 2), StartsWith("run.deterministic = true: cannot be combined with "));
  EXPECT_THAT(refusal_of({"sync.ps_mode=ssp", "sync.staleness=1"}, 2), HasSubstr("sync.ps_mode = ssp"));
  EXPECT_EQ(refusal_of({"sync.ps_mode=ssp", "sync.staleness=0"}, 2), "accepted");
  EXPECT_EQ(refusal_of({"sync.ps_mode=async", "sync.replay=orders"}, 2), "accepted");
  EXPECT_EQ(refusal_of({"sync.ps_mode=async"}, 1), "accepted");
  EXPECT_EQ(refusal_of({"sync.ps_mode=async", "sync.servers=1", "sync.server_ranks=dedicated"}, 2), "accepted");
  EXPECT_EQ(refusal_of({}, 2), "accepted");
}

TEST(RunFile, ErrorNamesInvalidFusionKey) {
  for (const std::string key : {"sync.cycle_ms", "sync.fusion_mb"}) try {
      parse_run_config("", "f", {"sync.buckets=cycle", key + "=0"}).check_world(2);
      ADD_FAILURE() << key;
    } catch (const UsageError& error) {
      EXPECT_EQ(error.what(), key + " = 0: must be > 0");
    }
}

TEST(RunFile, SuggestsOnlyLayoutsTheMethodSupports) {
  const RunConfig config = parse_run_config(
      "", "f",
      {"train.global_batch=8", "sync.method=ps", "sync.ps_mode=ssp", "sync.servers=1", "sync.server_ranks=dedicated"});
  try {
    config.check_world(4);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no layout of 3 ranks works"));
  }
}

TEST(RunFile, RoundTripsArbitraryStrings) {
  for (const char* name :
       {"two\nlines, ''' and \\ in them", "'", "\"", "'\"", "'''\n\"\"\"", "tab\t", "\x7f", "é\u05cc"}) {
    RunConfig config;
    config.run.name = name;
    EXPECT_EQ(parse_run_config(to_toml(config), "again", {}).run.name, name);
  }
}

TEST(RunFile, OverridesReplaceFileValuesAndFileValuesReplacePresets) {
  const RunConfig config =
      parse_run_config("[model]\npreset = \"gpt2-124m\"\nheads = 6\n", "f", {"model.dim=384", "run.name=7"});
  EXPECT_EQ(config.model.heads, 6);
  EXPECT_EQ(config.model.dim, 384);
  EXPECT_EQ(config.model.layers, 12);
  EXPECT_EQ(config.run.name, "7");
}

TEST(RunFile, SupportsNestedSections) {
  const auto config = parse_run_config("[model]\nlayers = 4\n[model.moe]\nexperts = 8\ntop_k = 1\n", "run.toml",
                                       {"model.moe.capacity_factor=1.25", "model.moe.aux_loss=0.02"});
  EXPECT_EQ(config.model.layers, 4);
  EXPECT_EQ(config.model.experts, 8);
  EXPECT_EQ(config.model.experts_per_token, 1);
  EXPECT_EQ(config.model.expert_capacity, 1.25);
  EXPECT_EQ(config.model.expert_aux, 0.02);
  EXPECT_EQ(to_toml(parse_run_config(to_toml(config), "again", {})), to_toml(config));
}

TEST(RunFile, AcceptsRenamedKeysByTheirOldNames) {
  const auto config = parse_run_config("[model]\nexperts = 8\nexperts_per_token = 1\nshared_expert = 16\n", "run.toml",
                                       {"model.expert_every=2"});
  EXPECT_EQ(to_toml(config),
            to_toml(parse_run_config("[model.moe]\nexperts = 8\ntop_k = 1\nshared = 16\nevery = 2\n", "run.toml", {})));
}

TEST(RunFile, ReportsWrongTypesWithLineAndColumn) {
  EXPECT_NE(refusal("[train]\nsteps = \"ten\"\n").find("run.toml:2:9: train.steps: got "), std::string::npos)
      << refusal("[train]\nsteps = \"ten\"\n");
  EXPECT_NE(refusal("[train]\nsteps = \"ten\"\n").find("; expected an integer"), std::string::npos);
  EXPECT_NE(refusal("[train]\nsteps = 1.5\n").find("expected an integer"), std::string::npos);
  EXPECT_NE(refusal("[run]\ndeterministic = 1\n").find("true or false"), std::string::npos);
  EXPECT_NE(refusal("steps = 3\n").find("section"), std::string::npos);
  EXPECT_NE(refusal("", {"train.lr"}).find("section.key=value"), std::string::npos);
  EXPECT_NE(refusal("[{train]\nsteps = 3\n").find("begins with an invalid character"), std::string::npos);
  EXPECT_NE(refusal("[train]\nstéps = 3\n").find("run.toml:2:3: got a non-ASCII letter"), std::string::npos);
  EXPECT_EQ(parse_run_config("# é\n[run]\nname = \"é\\\"é\"", "f", {"run.name=ö"}).run.name, "ö");
  EXPECT_NE(refusal("[data]\ntrain = [1]\n").find("list of strings"), std::string::npos);
}

// Each trial makes one random edit in a key. The key must be refused, and in at least 95 % of the trials the right key
// must be suggested.
TEST(RunFile, SuggestsTheKeyForOneWrongLetter) {
  RunConfig config;
  int tried = 0, suggested = 0;
  for (const Field& field : fields(config)) {
    for (uint64_t trial = 0; trial < 8; ++trial) {
      std::string key(field.key);
      const uint64_t bits = random_bits(11, trial, static_cast<uint64_t>(tried));
      const size_t at = (bits >> 8) % key.size();
      const char letter = static_cast<char>('a' + (bits >> 40) % 26);
      switch (bits % 4) {
        case 0:
          key[at] = letter;
          break;
        case 1:
          key.insert(at, 1, letter);
          break;
        case 2:
          if (key.size() > 2) key.erase(at, 1);
          break;
        default:
          if (at + 1 < key.size()) std::swap(key[at], key[at + 1]);
      }
      bool known = false;
      for (const Field& other : fields(config)) known = known || (other.section == field.section && other.key == key);
      if (known) continue;
      const std::string answer = refusal(fmt::format("[{}]\n{} = 1\n", field.section, key));
      EXPECT_NE(answer.find("unknown key"), std::string::npos) << key << ": " << answer;
      ++tried;
      if (answer.find(fmt::format("did you mean \"{}\"", field.key)) != std::string::npos) ++suggested;
    }
  }
  EXPECT_GT(tried, 400);
  EXPECT_GE(suggested, tried * 95 / 100) << tried;
}

TEST(RunFile, PresetsRoundTripThroughModelSection) {
  for (const model::Preset& preset : model::presets()) {
    const RunConfig config = parse_run_config(fmt::format("[model]\npreset = \"{}\"\n", preset.name), "f", {});
    EXPECT_TRUE(model_config(config.model) == preset.config) << preset.name;
  }
}

TEST(RunFile, ReadsRopeScalingUnderHuggingFaceNames) {
  const auto parse = [](const std::string& more) {
    return model_config(parse_run_config("[model]\npreset = \"llama-tiny\"\n" + more, "f", {}).model);
  };
  const model::ModelConfig scaled = parse(R"(rope_theta = 500000.0
rope_scaling = "llama3"
rope_factor = 8
rope_original_seq_len = 8192
)");
  EXPECT_EQ(scaled.rope,
            (kernel::RotaryAngles{
                .theta = 500000, .scaling = kernel::RopeScaling::llama3, .factor = 8, .original_seq_len = 8192}));
  EXPECT_EQ(model_config(model_section(scaled)), scaled);
  const auto problem = [&](const std::string& more) -> std::string {
    try {
      parse(more).check();
    } catch (const UsageError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(problem("rope_scaling = \"dynamic\"\n"), HasSubstr("none, linear, yarn, llama3"));
  EXPECT_THAT(problem("rope_factor = 8\n"), HasSubstr("used only with model.rope_scaling != none"));
  EXPECT_THAT(problem("rope_scaling = \"linear\"\nrope_factor = 0.5\n"), HasSubstr("must be >= 1"));
  EXPECT_THAT(problem("rope_scaling = \"yarn\"\nrope_factor = 2\n"), HasSubstr("rope_original_seq_len = 0"));
  EXPECT_THAT(problem("rope_scaling = \"linear\"\npositions = \"none\"\n"),
              HasSubstr("model.positions = rotary, rope"));
}

TEST(RunFile, RefusesAKeyTheRunDoesNotRead) {
  EXPECT_EQ(refusal("[sync]\ntau = 4\n"),
            "run.toml:2:7: sync.tau = 4: used only with sync.method = local; this run has sync.method = allreduce. "
            "Change that, or leave sync.tau out.");
  EXPECT_EQ(
      refusal("", {"sync.staleness=3"}),
      "--set sync.staleness=3: sync.staleness = 3: used only with sync.ps_mode = ssp, which needs sync.method = ps; "
      "this run has sync.method = allreduce. Change that, or leave sync.staleness out.");
  for (const auto& [key, method] :
       std::vector<std::pair<std::string, std::string>>{{"sync.topology=star", "gossip"},
                                                        {"sync.tracking=true", "gossip"},
                                                        {"sync.period=3", "gossip, diloco"},
                                                        {"sync.hierarchical=true", "gossip, local, diloco"},
                                                        {"sync.sample=2", "local"},
                                                        {"sync.outer_lr=0.5", "diloco"},
                                                        {"sync.ps_mode=async", "ps"},
                                                        {"sync.credit=2", "ps"},
                                                        {"sync.buckets=cycle", "allreduce"},
                                                        {"sync.prefetch=2", "zero3"},
                                                        {"sync.group=2", "zero1, zero2, zero3"},
                                                        {"sync.quantise=qwz", "zero3"}}) {
    const std::string other = method == "allreduce" ? "sync.method=zero1" : "sync.method=allreduce";
    EXPECT_THAT(refusal("", {key, other}), HasSubstr("used only with sync.method = " + method)) << key;
  }
  for (const char* key : {"parallel.tp=2", "parallel.dp=2", "parallel.schedule=gpipe", "parallel.context=ulysses"})
    EXPECT_THAT(refusal("", {"parallel.layout=auto", key}), HasSubstr("used only with parallel.layout != auto")) << key;
  for (const char* key :
       {"train.momentum=0.5", "train.nesterov=true", "train.decay_steps=9", "train.recompute_layers=1",
        "sync.fusion_mb=8", "sync.quantise_block=64", "sync.offload_tile=4096", "sync.delay_update=3",
        "sync.feedback=ef", "sync.onebit_warmup=9", "sync.gossip_step=0.5", "sync.trim=2", "model.rope_theta=500000",
        "model.moe.top_k=1", "data.mask_rate=0.2"})
    EXPECT_THAT(refusal("", {key}), HasSubstr("used only with ")) << key;
  for (const char* key : {"train.beta1=0.5", "train.beta2=0.5", "train.eps=1e-6"})
    EXPECT_THAT(refusal("", {key, "train.optimizer=sgd"}), HasSubstr("train.optimizer = adamw, adam")) << key;
}

TEST(RunFile, AcceptsKeysTheRunReadsAndUnreadKeysWithDefaultValue) {
  for (const std::vector<std::string>& given : std::vector<std::vector<std::string>>{
           {"sync.tau=8"},
           {"sync.tau=4", "sync.method=local"},
           {"sync.gossip_step=0.5", "sync.method=gossip", "sync.compress=topk:0.1", "sync.feedback=ef21"},
           {"sync.quantise_block=64", "sync.quantise=hpz,qwz", "sync.method=fsdp"},
           {"sync.servers=2", "sync.method=local", "sync.average_over=servers"},
           {"sync.offload_io=threads", "sync.method=zero3", "sync.offload=host", "sync.offload_params=file"},
           {"model.rope_theta=500000", "model.positions=rope"},
           {"model.rope_theta=500000", "model.arch=llama"},
           {"data.mask_rate=0.2", "model.arch=bert"},
           {"train.momentum=0.5", "train.optimizer=sgd"}})
    EXPECT_EQ(refusal("", given), "accepted") << given.front();
}

// Each condition must name an existing key. If the key has a table of choices, the condition must also name existing
// choices.
TEST(RunFile, EveryReadConditionNamesExistingKeyAndValues) {
  RunConfig config;
  const std::vector<Field> all = fields(config);
  for (const Field& field : all) EXPECT_NO_THROW(is_read(all, field)) << field.name();
}

TEST(RunFile, AcceptsUnreadKeysInAResolvedFile) {
  EXPECT_EQ(parse_resolved_config("[sync]\ntau = 4\n", "run.toml", UnknownKeys::refuse).sync.tau, 4);
  EXPECT_THROW(parse_resolved_config("[sync]\nother = 4\n", "run.toml", UnknownKeys::refuse), UsageError);
  EXPECT_EQ(
      parse_resolved_config("[other]\na = 1\n[sync]\nother = 4\ntau = 4\n", "run.toml", UnknownKeys::skip).sync.tau, 4);
}

TEST(RunFile, AcceptsMethodAliases) {
  EXPECT_EQ(parse_run_config("[sync]\nmethod = \"ddp\"\n", "f", {}).sync.method, "allreduce");
  EXPECT_EQ(parse_run_config("", "f", {"sync.method=fsdp"}).sync.method, "zero3");
  EXPECT_THAT(refusal("", {"sync.method=dpp"}), HasSubstr("did you mean \"ddp\""));
}

TEST(RunFile, ClampsWarmupToNumberOfSteps) {
  const RunConfig config = parse_run_config("", "f", {"train.steps=1", "train.warmup=5", "train.lr=0.5"});
  EXPECT_EQ(config.train.warmup, 5);
  EXPECT_EQ(learning_rate_at(config.train, 0), 0.5);
}

}  // namespace
}  // namespace esp::train
