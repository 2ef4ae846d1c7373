// What each precision mode means for this model (spec 7): what linears multiply in, how KV is
// stored, and whether the checkpoint's own rounding is simulated.
#pragma once

#include "base/result.h"
#include "kernels/kernel.h"
#include "models/deepseek_v4/config.h"
#include "models/model.h"
#include "tensor/dtype.h"

namespace nibble::models::deepseek_v4 {

struct Numerics {
  Precision precision = Precision::kReference;
  kernels::Activation activation = kernels::Activation::kF32;       // projections, experts
  kernels::Activation head_activation = kernels::Activation::kF32;  // LM head
  DType kv_dtype = DType::kF32;  // window and entry pools; kF8E4m3: the FP8 forms (spec 6.1)
  bool is_simulated = false;     // FP8 activations and KV, FP4 indexer, BF16 between the steps
};

// Router gates, compressor and indexer-weight projections are always f32: selections and long sums
// hang on them.
Numerics numerics_of(Precision precision, KvDtype kv_dtype = KvDtype::kAuto);

// On a GPU, whose tensor cores multiply BF16 and FP8: in the reference mode all activations are
// BF16; in the default mode weights with FP8 or FP4 codes take the checkpoint's own FP8 activations
// (7.1). Keys are BF16 or FP8. kUnsupported for the faithful mode.
Result<Numerics> gpu_numerics_of(Precision precision, KvDtype kv_dtype);

// What a weight of `format` takes of it: FP8 activations go with the formats whose checkpoints were
// made with them (7.1).
kernels::Activation gpu_activation(quant::Format format, kernels::Activation activation);

// kUnsupported when the quantisers of the faithful mode do not fit the model's sizes; names the
// size.
Result<void> check_simulated_sizes(const Config& config);

}  // namespace nibble::models::deepseek_v4
