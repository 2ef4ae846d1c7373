// The small ops against the scalar reference, on the cases of the kernels layer's differential
// test: a stand-in for each row takes host tensors, copies them to the GPU, launches the row there
// and copies every tensor back.
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/cuda_testing.h"
#include "kernels/ops_cases_testing.h"

namespace nibble::kernels {
namespace {

using cuda_testing::CudaTest;
using cuda_testing::gpu;

// Host memory that is on the GPU for one launch.
class Mirror final {
 public:
  TensorView operator()(TensorView view) {
    const int64_t bytes = view.num_rows() == 0 ? 0
                                               : ((view.num_rows() - 1) * view.row_stride +
                                                  view.shape.num_elements() / view.num_rows()) *
                                                     dtype_size(view.dtype);
    view.data = copy(view.data, bytes);
    return view;
  }
  template <class T>
  const T* operator()(const T* values, int64_t count) {
    if (values == nullptr) return nullptr;
    return static_cast<const T*>(
        copy(const_cast<T*>(values), count * static_cast<int64_t>(sizeof(T))));
  }
  template <class T>
  std::span<const T> operator()(std::span<const T> values) {
    return {(*this)(values.data(), static_cast<int64_t>(values.size())), values.size()};
  }

  // Copies everything back, inputs too.
  Result<void> finish() {
    for (const Part& part : parts_) {
      TRY(device::copy_to_host(
          part.host, part.device.data(), part.device.num_bytes(), gpu()->stream()));
    }
    return device::synchronize(gpu()->stream());
  }

 private:
  struct Part {
    void* host;
    device::Buffer device;
  };

  void* copy(void* host, int64_t num_bytes) {
    device::Buffer buffer = gpu()->allocate(num_bytes).value();
    device::copy_to_device(buffer.data(), host, num_bytes, gpu()->stream()).value();
    void* const data = buffer.data();
    if (num_bytes > 0) parts_.push_back({host, std::move(buffer)});
    return data;
  }

  std::vector<Part> parts_;
};

RmsNormArgs on_device(RmsNormArgs args, Mirror& mirror) {
  args.gamma = mirror(args.gamma, args.x.shape[1]);
  args.x = mirror(args.x);
  args.y = mirror(args.y);
  return args;
}

RopeArgs on_device(RopeArgs args, Mirror& mirror) {
  args.x = mirror(args.x);
  args.positions = mirror(args.positions);
  args.freqs = mirror(args.freqs);
  return args;
}

HyperPreArgs on_device(HyperPreArgs args, Mirror& mirror) {
  const int64_t rows = int64_t{2 + args.hc_mult} * args.hc_mult;
  args.fn = mirror(args.fn, rows * args.state.shape[1]);
  args.base = mirror(args.base, rows);
  args.scale = mirror(args.scale, 3);
  args.state = mirror(args.state);
  args.x = mirror(args.x);
  args.post = mirror(args.post);
  args.comb = mirror(args.comb);
  return args;
}

HyperPostArgs on_device(HyperPostArgs args, Mirror& mirror) {
  args.y = mirror(args.y);
  args.post = mirror(args.post);
  args.comb = mirror(args.comb);
  args.state = mirror(args.state);
  return args;
}

HyperHeadArgs on_device(HyperHeadArgs args, Mirror& mirror) {
  args.fn = mirror(args.fn, args.hc_mult * args.state.shape[1]);
  args.base = mirror(args.base, args.hc_mult);
  args.scale = mirror(args.scale, 1);
  args.state = mirror(args.state);
  args.x = mirror(args.x);
  return args;
}

SelectExpertsArgs on_device(SelectExpertsArgs args, Mirror& mirror) {
  constexpr int64_t kVocab = 20;  // of the cases' tables
  args.bias = mirror(args.bias, args.logits.shape[1]);
  args.token_to_experts = mirror(args.token_to_experts, kVocab * args.ids.shape[1]);
  args.token_ids = mirror(args.token_ids);
  args.logits = mirror(args.logits);
  args.ids = mirror(args.ids);
  args.weights = mirror(args.weights);
  return args;
}

// The row that stand_in() launches.
const KernelInfo* gpu_row = nullptr;

template <class Args>
Result<void> stand_in(const Args& args, device::Stream& /*stream*/) {
  Mirror mirror;
  TRY(std::get<Launcher<Args>>(gpu_row->launch)(on_device(args, mirror), gpu()->stream()));
  return mirror.finish();
}

template <class Args>
void compare_with_reference(Op op) {
  int32_t num_rows = 0;
  const KernelInfo* reference = nullptr;
  for (const KernelInfo* row : all_kernels()) {
    if (row->op == op && is_reference(*row)) reference = row;
  }
  for (const KernelInfo* row : all_kernels()) {
    if (row->op != op || row->target.kind != device::DeviceKind::kCuda ||
        !std::holds_alternative<Launcher<Args>>(row->launch)) {
      continue;
    }
    gpu_row = row;
    KernelInfo proxy = *row;
    proxy.launch = &stand_in<Args>;
    compare_op(proxy, *reference);
    ++num_rows;
  }
  EXPECT_GT(num_rows, 0);
}

using CudaOps = CudaTest;

TEST_F(CudaOps, RmsNormEqualsTheReference) { compare_with_reference<RmsNormArgs>(Op::kRmsNorm); }
TEST_F(CudaOps, RopeEqualsTheReference) { compare_with_reference<RopeArgs>(Op::kRope); }
TEST_F(CudaOps, HyperPreEqualsTheReference) { compare_with_reference<HyperPreArgs>(Op::kHyperPre); }
TEST_F(CudaOps, HyperPostEqualsTheReference) {
  compare_with_reference<HyperPostArgs>(Op::kHyperPost);
}
TEST_F(CudaOps, HyperHeadEqualsTheReference) {
  compare_with_reference<HyperHeadArgs>(Op::kHyperHead);
}
TEST_F(CudaOps, SelectExpertsEqualsTheReference) {
  compare_with_reference<SelectExpertsArgs>(Op::kSelectExperts);
}

}  // namespace
}  // namespace nibble::kernels
