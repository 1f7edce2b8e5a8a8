#include "engine/kv_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/kv_types.h"
#include "formats/safetensors_writer.h"
#include "model/kv_calibration.h"

namespace cachalot {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const KvBudgetType kTypes[] = {{"small", 4, {1.0f, 4.0f, 0.1f}}, {"middle", 7, {0.1f, 0.3f, 0.01f}}, {"exact", 16, {0, 0, 0}}};

TEST(KvBudget, WhoGainsMostGoesUpFirst) {
  EXPECT_THAT(*ChooseKvMix(kTypes, 3, 4), ElementsAre(0, 0, 0));
  EXPECT_THAT(*ChooseKvMix(kTypes, 3, 5), ElementsAre(0, 1, 0));
  EXPECT_THAT(*ChooseKvMix(kTypes, 3, 6), ElementsAre(1, 1, 0));
  EXPECT_THAT(*ChooseKvMix(kTypes, 3, 7), ElementsAre(1, 1, 1));
  EXPECT_THAT(*ChooseKvMix(kTypes, 3, 10), ElementsAre(1, 2, 1));
  EXPECT_THAT(*ChooseKvMix(kTypes, 3, 16), ElementsAre(2, 2, 2));
  EXPECT_THAT(ChooseKvMix(kTypes, 3, 3.9).status().message(), HasSubstr("small"));
}

TEST(KvBudget, ReadsTheCalibration) {
  ModelSpec spec;
  spec.num_layers = 4;
  spec.layers.resize(4);
  spec.layers[1].window = 64;
  spec.attention.num_q_heads = spec.attention.num_kv_heads = 1;
  spec.attention.head_dim = 128;
  const std::string path = testing::TempDir() + "kv_budget_test.safetensors";
  SafetensorsWriter writer;
  const int64_t mean_dims[] = {1, 128}, error_dims[] = {4};
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(writer.AddTensor(KeyMeanName(i), DType::kF32, mean_dims).ok());
  for (const KvFormat& format : KvFormats()) ASSERT_TRUE(writer.AddTensor(KvErrorName(format.name), DType::kF32, error_dims).ok());
  ASSERT_TRUE(writer.WriteFile(path, [](const SafetensorsTensor& tensor, ByteSink& sink) {
    std::vector<float> values(tensor.dims.size() == 2 ? 128 : 4, 0.5f);
    if (tensor.name == "kv_error.k4v4") values = {0.1f, 9.0f, 0.9f, 0.2f};
    if (tensor.name == "kv_error.k6v8") values = {0.01f, 9.0f, 0.02f, 0.01f};
    return sink.Append(std::as_bytes(std::span(values)));
  }).ok());
  // Of 256 values k4v4 takes 144 bytes and k6v8 228: 4.5 and 7.125 bits.
  const auto choice = ChooseKv({.calibration = path, .budget = 5.4f}, spec);
  ASSERT_TRUE(choice.ok()) << choice.status().message();
  EXPECT_EQ(choice->mix, "0=k4v4,2=k6v8,3=k4v4");
  EXPECT_FALSE(choice->types.Of(spec, 1).quantised()) << "a window is exempt";
  EXPECT_EQ(choice->types.Of(spec, 2), FindKvFormat("k6v8")->scheme);
  EXPECT_EQ(choice->key_means.size(), 4u);
  const auto fixed = ChooseKv({.layers = "3=f16", .calibration = path, .budget = 5.4f}, spec);
  ASSERT_TRUE(fixed.ok()) << fixed.status().message();
  EXPECT_FALSE(fixed->types.Of(spec, 3).quantised());
  EXPECT_NE(fixed->Name(), choice->Name());
  const auto error = [&](const KvOptions& options) { return ChooseKv(options, spec).status().message(); };
  EXPECT_THAT(error({.calibration = path, .budget = 3}), HasSubstr("--kv-budget 3"));
  EXPECT_THAT(error({.type = "k6v8", .calibration = path, .budget = 6}), HasSubstr("--kv-type"));
  EXPECT_THAT(error({.budget = 6}), HasSubstr("--kv-calibration"));
  spec.num_layers = 3;
  spec.layers.resize(3);
  EXPECT_THAT(error({.calibration = path, .budget = 6}), HasSubstr("kv_error.k8v8"));
}

}  // namespace
}  // namespace cachalot
