// Missing and misshapen tensors: found by the plan, before any weight is read.
#include <gtest/gtest.h>

#include <functional>

#include "model/arch/architecture.h"
#include "model/model.h"
#include "weights/dummy/dummy_source.h"

namespace cachalot {
namespace {

// A source with one tensor taken away or changed, and no bytes at all: who reads them fails.
class AlteredSource final : public TensorSource {
 public:
  AlteredSource(const TensorSource& original, const std::string& name, const std::function<bool(SourceTensor*)>& change) {
    for (SourceTensor tensor : original.tensors()) {
      if (tensor.name == name && !change(&tensor)) continue;
      tensors_.push_back(std::move(tensor));
    }
  }
  const std::string& place() const override { return place_; }
  std::span<const SourceTensor> tensors() const override { return tensors_; }
  const SourceTensor* Find(std::string_view name) const override {
    for (const auto& tensor : tensors_) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
  Result<TensorBytes> Fetch(const SourceTensor& tensor) const override {
    return Internal("{} was read", tensor.name);
  }
  void Release(const SourceTensor&) const override {}

 private:
  std::string place_ = "altered";
  std::vector<SourceTensor> tensors_;
};

struct Dummy {
  ModelSpec spec;
  std::unique_ptr<TensorSource> source;
};

Dummy Make(const char* name, const char* type) {
  auto weights = MakeDummySource(name, 2, type);
  EXPECT_TRUE(weights.ok()) << weights.status().ToString();
  auto config = HfConfig::Parse(weights->config_json, "dummy");
  EXPECT_TRUE(config.ok());
  auto spec = SpecFromHf(*config);
  EXPECT_TRUE(spec.ok()) << spec.status().ToString();
  return {*spec, std::move(weights->source)};
}

Status PlanWith(const Dummy& dummy, const std::string& name, const std::function<bool(SourceTensor*)>& change) {
  const AlteredSource source(*dummy.source, name, change);
  return Model::Plan(dummy.spec, source, {}).status();
}

TEST(ModelPlan, ReadsNoWeights) {
  for (const char* name : {"smollm2-135m", "qwen3-0.6b", "deepseek-v2-lite", "mixtral-8x7b"}) {
    const Dummy dummy = Make(name, "BF16");
    EXPECT_TRUE(PlanWith(dummy, "", {}).ok()) << name;
  }
}

TEST(ModelPlan, NamesWhatIsMissing) {
  const Dummy dummy = Make("deepseek-v2-lite", "BF16");
  for (const char* name : {"model.embed_tokens.weight", "model.layers.1.self_attn.kv_b_proj.weight",
                           "model.layers.1.mlp.experts.63.down_proj.weight", "model.layers.0.input_layernorm.weight",
                           "model.layers.1.mlp.gate.weight", "lm_head.weight"}) {
    const Status status = PlanWith(dummy, name, [](SourceTensor*) { return false; });
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << name;
    EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
  }
}

TEST(ModelPlan, NamesTheShapeThatDiffers) {
  const Dummy dummy = Make("deepseek-v2-lite", "BF16");
  const Status status = PlanWith(dummy, "model.layers.1.mlp.experts.7.up_proj.weight", [](SourceTensor* tensor) {
    tensor->dims[0] -= 1;
    return true;
  });
  EXPECT_NE(status.message().find("experts.7.up_proj.weight' has shape [1407, 2048], the configuration asks for [1408, 2048]"),
            std::string::npos) << status.message();
}

TEST(ModelPlan, NamesTheTypeThatCannotRun) {
  const Dummy dummy = Make("smollm2-135m", "BF16");
  const Status status = PlanWith(dummy, "model.layers.0.mlp.up_proj.weight", [](SourceTensor* tensor) {
    tensor->dtype = DType::kF64;
    return true;
  });
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("F64"), std::string::npos) << status.message();
}

TEST(ModelPlan, Fp8NeedsItsBlockScales) {
  const Dummy dummy = Make("deepseek-v3", "F8_E4M3");
  const char* name = "model.layers.0.mlp.down_proj.weight_scale_inv";
  EXPECT_NE(PlanWith(dummy, name, [](SourceTensor*) { return false; }).message().find(name), std::string::npos);
  const Status status = PlanWith(dummy, name, [](SourceTensor* tensor) {
    tensor->dims[1] += 1;
    return true;
  });
  EXPECT_NE(status.message().find("expected F32 [56, 144]"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace cachalot
