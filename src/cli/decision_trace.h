// The discrete decisions of a pass as a file, so that two backends can be compared without the
// noise of near-ties. A safetensors file of I32 tensors, for each layer N that has any:
//   layers.N.experts   [positions, k]  expert ids of MoE layers
//   layers.N.selected  [positions, K]  entries that the indexer chose; K is the most at any
//   position
// Rows end with -1 where a position has fewer. The MTP layer is layer num_hidden_layers.
#pragma once

#include "base/file.h"
#include "base/result.h"
#include "models/model.h"

namespace nibble::cli {

Result<void> write_decisions(const Path& path, const models::Decisions& decisions);

// kDataLoss for files that are damaged or hold other tensors than these.
Result<models::Decisions> read_decisions(const Path& path);

}  // namespace nibble::cli
